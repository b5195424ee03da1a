"""Signatures and attestations of bundles, as OCI referrers of the model manifest; trust by policy."""
