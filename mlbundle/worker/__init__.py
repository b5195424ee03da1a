"""Runs inside the framework image: standard library and NumPy, Python 3.9; imports `mlbundle.wire` alone.

It is shipped as an archive and never imported by the host side.
"""
