"""The bundle file: digests, OCI layout archive, pack, inspect, verify, unpack."""
