"""Programs that run inside a worker, one file per engine."""
