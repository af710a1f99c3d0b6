"""The drivers and the SQL of Threadkeep's database.

Other packages execute statements only through a `Driver`; only the DBOS engine in `runs.engine` has its own
connections. A `Driver` lends connections to SQLite or PostgreSQL, `sql/` has the SQL statements, and `migrations`
creates the schema. Most other modules convert between rows and records: `transcripts` (append, newest, recent, find),
`search`, `runs` and so on. `spool` stores turns in a file while no database accepts them.
"""
