"""The drivers and the SQL of Threadkeep's database.

Other packages execute statements only through a `Driver`, which lends connections to SQLite or PostgreSQL. The only
exception is the DBOS engine in `runs.engine`, which has its own connections. `sql/` contains the SQL statements, and
`migrations` creates the schema. Most other modules convert between rows and records, for example `tables`, `search` and
`manifests`. `spool` stores turns in a file while no database accepts them.
"""
