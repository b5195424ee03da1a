"""The terminal UI of mlbundle; it holds no logic and calls `mlbundle.runs` as the command line does."""
