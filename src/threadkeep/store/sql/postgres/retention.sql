-- Locks of retention, and the removal of the beginning of a session from PostgreSQL's search index.

-- name: hold
-- Lock the session, also against transactions that lock it only against deletion, such as those that add vectors.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id FOR UPDATE

-- name: forget_range
DELETE FROM chat_search f USING chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND f.document = m.document

-- name: hold_runs
-- Lock the runs that are deleted with messages; the same order everywhere prevents deadlocks.
-- include: runs_of_messages
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE

-- name: hold_trees
-- Lock in the same order as everywhere else.
-- include: going
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM going) ORDER BY run_id FOR UPDATE

-- name: tables
-- A partitioned table stands for its partitions.
SELECT CAST(oid AS REGCLASS)::TEXT FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS REGNAMESPACE) AND relkind IN ('r', 'p') AND NOT relispartition
ORDER BY relname
