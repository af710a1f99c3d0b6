-- What runs need of PostgreSQL alone: locks that SQLite does not know, since its writers take turns.

-- name: lock_order
-- One transaction at a time orders the runs of a session, whether the session has a row or not.
SELECT pg_advisory_xact_lock(hashtextextended(:session_id, 7310865114))

-- name: lock_order_of
SELECT pg_advisory_xact_lock(hashtextextended(session_id, 7310865114)) FROM chat_runs
WHERE run_id = :run_id AND session_id IS NOT NULL

-- name: lock_tree
-- One transaction at a time adds to a tree of runs, or stops it.
SELECT pg_advisory_xact_lock(hashtextextended(:root_run_id, 7310865115))

-- name: hold_below
-- In one order everywhere, so that nobody waits for anybody's rows in a circle.
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM chat_runs WHERE run_id = :run_id
    UNION
    SELECT c.run_id FROM below b JOIN chat_runs c ON c.parent_run_id = b.run_id
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM below) ORDER BY run_id FOR NO KEY UPDATE

-- name: keep_run
-- That it is there, and stays until the transaction ends.
SELECT owner FROM chat_runs WHERE run_id = :run_id FOR KEY SHARE

-- name: keep_alive
-- A row that somebody works on now gets the next heartbeat.
UPDATE chat_runs SET heartbeat_at = :now
WHERE run_id IN (
    SELECT run_id FROM chat_runs WHERE owner = :owner AND status = 'running' ORDER BY run_id FOR NO KEY UPDATE SKIP LOCKED
)

-- name: disown
UPDATE chat_runs SET heartbeat_at = :never
WHERE run_id IN (
    SELECT run_id FROM chat_runs WHERE owner = :owner AND status = 'running' ORDER BY run_id FOR NO KEY UPDATE
)
RETURNING run_id

-- name: hold_runs
-- What goes with a session, in the same order as everywhere.
WITH RECURSIVE gone (run_id) AS (
    SELECT run_id FROM chat_runs WHERE session_id = :session_id
    UNION
    SELECT t.run_id
    FROM chat_messages m JOIN chat_runs r ON r.run_id = m.run_id JOIN chat_runs t ON t.run_id IN (r.run_id, r.root_run_id)
    WHERE m.session_id = :session_id AND r.session_id IS NULL AND t.session_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE

-- name: hold_trees
-- In the same order as everywhere.
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
), going (run_id) AS (
    SELECT root_run_id FROM wanted
    UNION ALL
    SELECT c.run_id FROM wanted w JOIN chat_runs c ON c.root_run_id = w.root_run_id AND c.parent_run_id IS NOT NULL
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM going) ORDER BY run_id FOR UPDATE
