-- Locks for runs on PostgreSQL; SQLite executes one write transaction at a time and needs none.

-- name: lock_order
-- Lock the order of runs in a conversation; the conversation need not have a row.
SELECT pg_advisory_xact_lock(hashtextextended(:place, 7310865114))

-- name: lock_order_of
-- Lock the order of each conversation of a run. All transactions use the same order, which prevents deadlocks.
SELECT pg_advisory_xact_lock(hashtextextended(n.place, 7310865114)) FROM (
    SELECT c.place FROM (
        SELECT session_id AS place FROM chat_runs WHERE run_id = :run_id AND session_id IS NOT NULL
        UNION
        SELECT place FROM chat_run_places WHERE run_id = :run_id
    ) c
    ORDER BY c.place COLLATE "C"
) n

-- name: lock_tree
-- Lock a tree of runs: no run can be added to it or cancelled in it meanwhile.
SELECT pg_advisory_xact_lock(hashtextextended(:root_run_id, 7310865115))

-- name: lock_below
-- Lock a run and its descendants. All transactions use the same order, which prevents deadlocks.
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM chat_runs WHERE run_id = :run_id
    UNION
    SELECT c.run_id FROM below b JOIN chat_runs c ON c.parent_run_id = b.run_id
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM below) ORDER BY run_id FOR NO KEY UPDATE

-- name: keep_run
-- Lock a run against deletion until the transaction ends, and return its owner.
SELECT owner FROM chat_runs WHERE run_id = :run_id FOR KEY SHARE

-- name: disown
UPDATE chat_runs SET heartbeat_at = :disowned
WHERE run_id IN (
    SELECT run_id FROM chat_runs
    WHERE owner = :owner AND status = 'running' AND heartbeat_at <> :disowned
    ORDER BY run_id FOR NO KEY UPDATE
)
RETURNING run_id

-- name: hold_runs
-- Lock the runs that are deleted with a session, in the order that all transactions use.
WITH RECURSIVE gone (run_id) AS (
    SELECT run_id FROM chat_runs WHERE session_id = :session_id
    UNION
    SELECT t.run_id
    FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_runs r ON r.run_id = m.run_id
    JOIN chat_runs t ON t.run_id IN (r.run_id, r.root_run_id)
    WHERE s.session_id = :session_id AND (s.parent_session_id IS NULL OR m.created_at >= s.created_at)
        AND r.session_id IS NULL AND t.session_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE
