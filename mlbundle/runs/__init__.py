"""Application services: plan, execute, catalog; what the command line and the terminal UI call."""
