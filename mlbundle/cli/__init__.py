"""The command line: parsing and printing, no logic."""
