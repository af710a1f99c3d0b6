"""The chat API: a message in, an answer out. Each turn is a run, or an unrecorded run while the database is down."""
