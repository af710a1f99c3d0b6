-- The condition of a PostgreSQL database.

-- name: engine
SELECT name, setting FROM pg_settings
WHERE name IN ('server_version', 'fsync', 'synchronous_commit', 'transaction_read_only', 'max_connections')
UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'

-- name: totals
SELECT count(*), coalesce(sum(message_count), 0), coalesce(sum(last_seq - indexed_seq), 0) FROM chat_sessions

-- name: holders
-- Transactions that have been open in this database for :seconds and may hold locks, the oldest first.
SELECT pid, coalesce(nullif(application_name, ''), usename, ''), coalesce(state, ''), extract(epoch FROM now() - xact_start)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < now() - make_interval(secs => :seconds)
ORDER BY xact_start
LIMIT 20
