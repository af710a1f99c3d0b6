-- Queries for runs, and their deletion.

-- name: page
-- Included by other statements: one page of runs that match the filters, newest first, after the cursor (:created_at,
-- :run_id). PostgreSQL assumes that a CASE selects half of the rows. So it reads the runs in the order of an index. With
-- plain filters that seem to select few rows, it would sort all runs.
    /* replan */
    AND (r.created_at, r.run_id) < (:created_at, :run_id)
    AND CASE WHEN (CAST(:workflow AS TEXT) IS NULL OR r.workflow = :workflow)
        AND (CAST(:status AS TEXT) IS NULL OR r.status = :status)
        AND (CAST(:session_id AS TEXT) IS NULL OR r.session_id = :session_id)
        AND (CAST(:user_id AS TEXT) IS NULL OR r.user_id = :user_id)
        AND (CAST(:set_aside AS BOOLEAN) IS NULL OR r.set_aside = CAST(:set_aside AS BOOLEAN))
        AND (NOT CAST(:turns AS BOOLEAN) OR (r.parent_run_id IS NULL AND r.workflow NOT IN (:reset, :delete)))
        THEN TRUE ELSE FALSE END
    AND (CAST(:since AS TIMESTAMPTZ) IS NULL OR r.created_at >= :since)
ORDER BY r.created_at DESC, r.run_id DESC
LIMIT :limit

-- name: newest
SELECT r.run_id FROM chat_runs r
WHERE TRUE
-- include: page

-- name: newest_of_session
SELECT r.run_id FROM chat_runs r
WHERE r.session_id = :session_id
-- include: page

-- name: newest_of_user
SELECT r.run_id FROM chat_runs r
WHERE r.user_id = :user_id
-- include: page

-- name: newest_of_parent
SELECT r.run_id FROM chat_runs r
WHERE r.parent_run_id = :parent_run_id
-- include: page

-- name: newest_set_aside
SELECT r.run_id FROM chat_runs r
WHERE r.set_aside
-- include: page

-- name: newest_running
-- Few runs are running. The CTE keeps SQLite from reading all runs in the order of their creation.
WITH running AS MATERIALIZED (
    SELECT run_id, created_at, workflow, status, session_id, user_id, set_aside, parent_run_id
    FROM chat_runs WHERE status = 'running'
)
SELECT r.run_id FROM running r
WHERE TRUE
-- include: page

-- name: newest_queued
SELECT r.run_id FROM chat_runs r
WHERE r.status = 'queued'
-- include: page

-- name: newest_open_of_session
-- An index has the queued and running runs of each session. The CTE keeps SQLite from reading all runs of the session.
WITH opened AS MATERIALIZED (
    SELECT run_id, created_at, workflow, status, session_id, user_id, set_aside, parent_run_id
    FROM chat_runs WHERE session_id = :session_id AND status IN ('queued', 'running')
)
SELECT r.run_id FROM opened r
WHERE TRUE
-- include: page

-- name: newest_by_status
-- Both engines use a partial index only if a statement repeats its condition. Nearly all runs are done.
SELECT r.run_id FROM chat_runs r
WHERE r.status IN ('waiting', 'failed', 'cancelled', 'interrupted') AND r.status = :status
-- include: page

-- name: newest_of_session_by_status
SELECT r.run_id FROM chat_runs r
WHERE r.session_id = :session_id AND r.status IN ('waiting', 'failed', 'cancelled', 'interrupted') AND r.status = :status
-- include: page

-- name: newest_of_user_by_status
SELECT r.run_id FROM chat_runs r
WHERE r.user_id = :user_id AND r.status IN ('waiting', 'failed', 'cancelled', 'interrupted') AND r.status = :status
-- include: page

-- name: of_sessions
-- The newest turn of each session, one that is queued or running, and the newest 20 that wait. The bounds of the arrival
-- and the CASE make PostgreSQL use the index of arrivals even without statistics.
WITH wanted (session_id) AS (
VALUES (:session_id)
)
SELECT (
    SELECT r.run_id FROM chat_runs r
    WHERE r.session_id = w.session_id AND r.arrival BETWEEN 1 AND 9223372036854775807 AND r.parent_run_id IS NULL
        AND r.workflow NOT IN (:reset, :delete)
        AND CASE WHEN CAST(:user_id AS TEXT) IS NULL OR r.user_id = :user_id THEN TRUE ELSE FALSE END
    ORDER BY r.arrival DESC LIMIT 1
) FROM wanted w
UNION
SELECT (
    SELECT r.run_id FROM chat_runs r
    WHERE r.session_id = w.session_id AND r.arrival IS NOT NULL AND r.status IN ('queued', 'running')
        AND r.parent_run_id IS NULL AND r.workflow NOT IN (:reset, :delete)
        AND (CAST(:user_id AS TEXT) IS NULL OR r.user_id = :user_id)
    ORDER BY r.arrival LIMIT 1
) FROM wanted w
UNION
SELECT n.run_id FROM (
    SELECT r.run_id, ROW_NUMBER() OVER (PARTITION BY r.session_id ORDER BY r.arrival DESC) AS number
    FROM wanted w JOIN chat_runs r ON r.session_id = w.session_id
    WHERE r.status IN ('waiting', 'failed', 'cancelled', 'interrupted') AND r.status = 'waiting'
        AND r.parent_run_id IS NULL
        AND CASE WHEN CAST(:user_id AS TEXT) IS NULL OR r.user_id = :user_id THEN TRUE ELSE FALSE END
) n
WHERE n.number <= 20

-- name: tree
-- A root and all runs below it, parents before their children.
SELECT t.run_id FROM (
    SELECT run_id, depth, created_at FROM chat_runs WHERE run_id = :root_run_id
    UNION ALL
    SELECT run_id, depth, created_at FROM chat_runs WHERE root_run_id = :root_run_id AND parent_run_id IS NOT NULL
) t
ORDER BY t.depth, t.created_at, t.run_id
LIMIT :limit

-- name: counts
-- Each count uses its own index, up to :limit. A child that waits together with its parent is not counted.
SELECT 'queued', count(*) FROM (SELECT 1 FROM chat_runs WHERE status = 'queued' LIMIT :limit) q
UNION ALL
SELECT 'running', count(*) FROM (SELECT 1 FROM chat_runs WHERE status = 'running' LIMIT :limit) r
UNION ALL
SELECT 'waiting', count(*) FROM (
    SELECT 1 FROM chat_runs c LEFT JOIN chat_runs p ON p.run_id = c.parent_run_id AND p.status = 'waiting'
    WHERE c.status = 'waiting' AND p.run_id IS NULL LIMIT :limit
) w
UNION ALL
SELECT 'set_aside', count(*) FROM (SELECT 1 FROM chat_runs WHERE set_aside LIMIT :limit) a

-- name: without_workflow
-- Unfinished runs that no process executes, because a worker lacks their workflow. Each status has its own index.
SELECT run_id, workflow FROM chat_runs WHERE status = 'queued' AND error = 'WorkflowGone'
UNION ALL
SELECT run_id, workflow FROM chat_runs WHERE status = 'running' AND error = 'WorkflowGone'
LIMIT :limit

-- name: delete_alone
-- Delete the given runs that have no session, and their roots and descendants that have none either.
WITH RECURSIVE wanted (run_id) AS (
VALUES (:run_id)
),
gone (run_id) AS (
    SELECT t.run_id
    FROM wanted w JOIN chat_runs r ON r.run_id = w.run_id JOIN chat_runs t ON t.run_id IN (r.run_id, r.root_run_id)
    WHERE r.session_id IS NULL AND t.session_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone)

-- name: alone_at_work
-- Return a row if a run is queued or running in the trees of the given runs without a session.
WITH wanted (run_id) AS (
VALUES (:run_id)
)
SELECT 1 FROM wanted w JOIN chat_runs r ON r.run_id = w.run_id
WHERE r.session_id IS NULL AND (
    EXISTS (SELECT 1 FROM chat_runs t WHERE t.run_id IN (r.run_id, r.root_run_id) AND t.status IN ('queued', 'running'))
    OR EXISTS (
        SELECT 1 FROM chat_runs c
        WHERE c.root_run_id = r.root_run_id AND c.parent_run_id IS NOT NULL AND c.status IN ('queued', 'running')
    )
)
LIMIT 1

-- name: may_have_checkpoints
INSERT INTO chat_run_checkpoints (run_id) VALUES (:run_id) ON CONFLICT (run_id) DO NOTHING

-- name: with_checkpoints
-- Runs that are done, deleted, or ended before :before without a result, and may still have checkpoints.
SELECT c.run_id FROM chat_run_checkpoints c LEFT JOIN chat_runs r ON r.run_id = c.run_id
WHERE r.run_id IS NULL
    OR r.status = 'done'
    OR (r.status IN ('failed', 'cancelled', 'interrupted') AND r.ended_at <= :before)
ORDER BY c.run_id
LIMIT :limit

-- name: checkpoints_removed
DELETE FROM chat_run_checkpoints
WHERE run_id = :run_id AND NOT EXISTS (
    SELECT 1 FROM chat_runs r WHERE r.run_id = :run_id AND r.status IN ('queued', 'running', 'waiting')
)

-- name: keep_workflow
INSERT INTO chat_workflows (name, version, definition, first_used_at) VALUES (:name, :version, :definition, :now)
ON CONFLICT (name, version) DO NOTHING

-- name: workflow
SELECT name, version, definition, first_used_at FROM chat_workflows WHERE name = :name AND version = :version

-- name: unused_workflows
-- Versions without runs, except the newest of each workflow.
SELECT w.name, w.version FROM chat_workflows w
WHERE w.first_used_at < :before
    AND EXISTS (
        SELECT 1 FROM chat_workflows n WHERE n.name = w.name AND (n.first_used_at, n.version) > (w.first_used_at, w.version)
    )
    AND NOT EXISTS (SELECT 1 FROM chat_runs r WHERE r.workflow = w.name AND r.version = w.version)
ORDER BY w.first_used_at, w.name, w.version
LIMIT :limit

-- name: forget_workflow
-- Delete a version, unless a run has begun with it since the check.
DELETE FROM chat_workflows
WHERE name = :name AND version = :version AND NOT EXISTS (
    SELECT 1 FROM chat_runs r WHERE r.created_at >= :since AND r.workflow = :name AND r.version = :version
)
