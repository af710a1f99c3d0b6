"""The HTTP face: `create_service` makes the FastAPI application over an open `App`, `serve` runs it as a process.

No other room knows FastAPI. This one decides nothing about conversations: it checks what comes in, asks `App`,
`Memory`, `Session` and `Chat`, and says how it went; every error is a problem document (RFC 9457).
"""
