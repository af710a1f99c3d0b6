"""The HTTP service: `create_service` builds the FastAPI application, `serve` runs it as a process.

FastAPI is imported only in this package. It validates requests, calls `App`, `Memory`, `Session` and `Chat`, and
formats the results. Every error becomes a problem document (RFC 9457).
"""
