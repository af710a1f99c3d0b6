"""Where it is kept: the only room that touches a database.

A `Driver` gives connections to SQLite or PostgreSQL, `sql/` holds the statements as text, `migrations` builds the
schema, and the stores on top speak in records: `transcripts` (append, newest, recent, find), `search` and `runs`.
`spool` keeps turns in a file while no database takes them.
"""
