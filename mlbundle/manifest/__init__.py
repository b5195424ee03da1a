"""Model and framework manifests: load with source positions, validate, version constraints."""
