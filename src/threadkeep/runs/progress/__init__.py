"""Progress of runs: checkpoints, stored with the runs as soon as a crash would cost more than one model call."""
