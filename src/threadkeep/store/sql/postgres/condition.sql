-- The condition of a PostgreSQL database.

-- name: engine
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'transaction_read_only', 'max_connections')
UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
UNION ALL SELECT 'role', quote_ident(current_user)
UNION ALL SELECT 'hidden_connections', count(*)::text FROM pg_stat_activity
WHERE datname = current_database() AND query = '<insufficient privilege>'
UNION ALL SELECT 'engine_grant', format('GRANT CREATE ON DATABASE %I TO %I', current_database(), current_user)
WHERE to_regnamespace('threadkeep_engine') IS NULL AND NOT has_database_privilege(current_database(), 'CREATE')
UNION ALL SELECT 'engine_grant', format(
    'GRANT USAGE, CREATE ON SCHEMA threadkeep_engine TO %1$I; '
    'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA threadkeep_engine TO %1$I', current_user
)
FROM pg_namespace n
WHERE n.nspname = 'threadkeep_engine' AND (
    NOT has_schema_privilege(n.oid, 'USAGE')
    OR EXISTS (
        SELECT 1 FROM pg_class c CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS r (name)
        WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, r.name)
    )
)

-- name: totals
SELECT count(*), coalesce(sum(message_count), 0), coalesce(sum(last_seq - indexed_seq), 0) FROM chat_sessions

-- name: holders
-- Transactions that have been open in this database for :seconds and may hold locks, the oldest first.
SELECT pid, coalesce(nullif(application_name, ''), usename, ''), coalesce(state, ''), extract(epoch FROM now() - xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < now() - make_interval(secs => :seconds)
ORDER BY xact_start
LIMIT 20

-- name: connections
-- The other connections to this database. A restore needs a database without them, because DROP TABLE waits for their
-- locks. The type of a connection is NULL if this role may not see it.
SELECT pid, coalesce(nullif(application_name, ''), usename, '')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND coalesce(backend_type, 'client backend') = 'client backend'
ORDER BY pid
LIMIT 20

-- name: missing_rights
-- The rights on :tables, their view and their sequence that this role lacks.
SELECT c.relname, string_agg(r.name, ', ' ORDER BY r.name), quote_ident(current_schema())
FROM pg_class c CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE'), ('USAGE')) AS r (name)
WHERE c.relnamespace = CAST(quote_ident(current_schema()) AS REGNAMESPACE) AND c.relname = ANY (:tables) AND NOT CASE
    WHEN c.relkind = 'S' THEN r.name <> 'USAGE' OR has_sequence_privilege(c.oid, 'USAGE')
    WHEN r.name = 'USAGE' OR (c.relkind = 'v' AND r.name <> 'SELECT') THEN TRUE
    ELSE has_table_privilege(c.oid, r.name)
END
GROUP BY c.relname
ORDER BY c.relname
