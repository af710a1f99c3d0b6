"""The only package that accesses a database.

A `Driver` lends connections to SQLite or PostgreSQL, `sql/` has the statements as text, and `migrations` creates the
schema. The stores on top work with records: `transcripts` (append, newest, recent, find), `search` and `runs`. `spool`
keeps turns in a file while no database accepts them.
"""
