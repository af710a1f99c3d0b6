"""The console: server-rendered pages of sessions, runs and model calls, which explain the context of each call."""
