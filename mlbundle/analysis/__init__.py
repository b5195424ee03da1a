"""Statistics, accuracy, comparison with what was claimed."""
