"""ML evaluations that somebody else can repeat.

This module holds the version and nothing heavy: it travels inside the worker archive and is imported by
Python 3.9 in framework images.
"""

__version__ = "0.1.0"
