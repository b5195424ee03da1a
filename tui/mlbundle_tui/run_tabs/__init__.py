"""The tabs of a run's page. Each reads its own files, in a thread, when it is first looked at."""
