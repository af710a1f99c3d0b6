-- The beginning of a session is removed from PostgreSQL's search index.

-- name: hold
-- Also against transactions that only keep the session from being deleted, such as those that add vectors.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id FOR UPDATE

-- name: forget_range
DELETE FROM chat_search f USING chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND f.document = m.document

-- name: hold_runs
-- Lock the runs that are deleted with messages; the same order everywhere prevents deadlocks.
WITH RECURSIVE gone (run_id) AS (
    SELECT r.run_id FROM chat_messages m JOIN chat_runs r ON r.session_id = m.session_id AND r.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT j.run_id FROM chat_messages m JOIN chat_run_messages j ON j.session_id = m.session_id AND j.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT r.run_id FROM chat_messages m JOIN chat_runs r ON r.run_id = m.run_id AND r.session_id = m.session_id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND r.message_id IS NULL
        AND r.parent_run_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE

-- name: tables
-- Those that are partitioned stand for their partitions.
SELECT CAST(oid AS REGCLASS)::TEXT FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS REGNAMESPACE) AND relkind IN ('r', 'p') AND NOT relispartition
ORDER BY relname
