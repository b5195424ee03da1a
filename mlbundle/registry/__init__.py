"""OCI registries: the distribution API, credentials, and moving blobs both ways with resume and verification."""
