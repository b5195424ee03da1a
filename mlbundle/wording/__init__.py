"""Results, records and numbers in the words that the command line and the terminal UI both use."""
