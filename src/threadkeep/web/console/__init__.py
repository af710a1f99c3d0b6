"""The console: server-rendered pages of sessions, runs and model calls."""
