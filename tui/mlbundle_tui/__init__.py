"""The terminal UI: choose, run, inspect. It holds no logic: it calls the functions that the command line calls."""
