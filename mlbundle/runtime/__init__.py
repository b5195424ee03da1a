"""Where a worker runs: Docker or a child process; images and environments."""
