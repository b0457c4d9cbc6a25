"""A run on disk: its directory, checkpoints, logs and the session that trains it."""
