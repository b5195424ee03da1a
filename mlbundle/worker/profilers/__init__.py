"""Reads what a framework's own profiler saw of a query: its layers, and the kernels below them."""
