-- Row locks for retention, and the tables of the schema.

-- name: hold
-- Lock the session completely, also against transactions that only prevent its deletion, such as those that add
-- vectors.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id FOR UPDATE

-- name: hold_runs
-- Lock the runs that are deleted with messages. All transactions use the same order, which prevents deadlocks.
-- include: runs_of_messages
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE

-- name: hold_trees
-- Lock the runs of the trees in the order that all transactions use.
-- include: going
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM going) ORDER BY run_id FOR UPDATE

-- name: tables
-- The tables to rewrite; a partitioned table is listed instead of its partitions.
SELECT CAST(oid AS REGCLASS)::TEXT FROM pg_class
WHERE relnamespace = CAST(quote_ident(current_schema()) AS REGNAMESPACE) AND relkind IN ('r', 'p') AND NOT relispartition
ORDER BY relname
