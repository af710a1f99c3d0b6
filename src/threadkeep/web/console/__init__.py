"""The console: server-rendered pages that show sessions, runs and model calls, and why each call saw what it saw."""
