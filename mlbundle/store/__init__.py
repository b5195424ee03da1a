"""Kept data: unpacked bundles, fetched assets, the evaluation database."""
