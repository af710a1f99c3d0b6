-- Deletion of expired runs as whole trees: the runs below are deleted with the root.

-- name: over_for_long
-- From the cursor (:created_at, :run_id) on: the root of each tree (or the oldest run below a deleted root), with the
-- numbers of runs and events. A tree stays while any of its runs is active, waits, or ended after :before; and while
-- any of them is set aside, unless it ended before :set_aside_before.
SELECT
    r.root_run_id, r.workflow, r.status, r.created_at, r.run_id, r.ended_at,
    CASE WHEN r.parent_run_id IS NULL THEN 1 ELSE 0 END
    + (SELECT count(*) FROM chat_runs t WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL),
    coalesce((
        SELECT e.last_number FROM chat_run_traces e WHERE e.run_id = r.run_id AND r.parent_run_id IS NULL
    ), 0)
    + (
        SELECT CAST(coalesce(sum(e.last_number), 0) AS BIGINT) FROM chat_runs t JOIN chat_run_traces e ON e.run_id = t.run_id
        WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL
    )
FROM chat_runs r
WHERE (r.created_at, r.run_id) > (:created_at, :run_id)
    AND r.created_at < :before AND r.ended_at < :before AND r.status IN ('done', 'failed', 'cancelled', 'interrupted')
    AND (NOT r.set_aside OR r.ended_at < :set_aside_before)
    AND (r.parent_run_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM chat_runs t
        WHERE t.run_id = r.root_run_id OR (
            t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL AND (t.created_at, t.run_id) < (r.created_at, r.run_id)
        )
    ))
    AND NOT EXISTS (
        SELECT 1 FROM chat_runs t
        WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL AND (
            t.ended_at IS NULL OR t.ended_at >= :before
            OR t.status NOT IN ('done', 'failed', 'cancelled', 'interrupted')
            OR (t.set_aside AND t.ended_at >= :set_aside_before)
        )
    )
ORDER BY r.created_at, r.run_id
LIMIT :limit

-- name: still_over
-- Trees that are unchanged; a person may have retried one.
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
)
SELECT w.root_run_id FROM wanted w
WHERE NOT EXISTS (
    SELECT 1 FROM chat_runs t
    WHERE (t.run_id = w.root_run_id OR (t.root_run_id = w.root_run_id AND t.parent_run_id IS NOT NULL)) AND (
        t.ended_at IS NULL OR t.ended_at >= :before
        OR t.status NOT IN ('done', 'failed', 'cancelled', 'interrupted')
        OR (t.set_aside AND t.ended_at >= :set_aside_before)
    )
)

-- name: remember
-- Messages that were answered, or whose run was cancelled; a failed one may be asked again.
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
), going (run_id) AS (
    SELECT root_run_id FROM wanted
    UNION ALL
    SELECT c.run_id FROM wanted w JOIN chat_runs c ON c.root_run_id = w.root_run_id AND c.parent_run_id IS NOT NULL
), answered (message_id, run_id) AS (
    SELECT r.message_id, r.run_id FROM going g JOIN chat_runs r ON r.run_id = g.run_id WHERE r.message_id IS NOT NULL
    UNION ALL
    SELECT j.message_id, j.run_id FROM going g JOIN chat_run_messages j ON j.run_id = g.run_id
)
INSERT INTO chat_answered_messages (
    session_id, message_id, run_id, workflow, status, user_id, trigger, created_at, ended_at
)
SELECT r.session_id, a.message_id, r.run_id, r.workflow, r.status, r.user_id, r.trigger, r.created_at, r.ended_at
FROM answered a JOIN chat_runs r ON r.run_id = a.run_id
WHERE r.session_id IS NOT NULL AND r.status IN ('done', 'cancelled')
ON CONFLICT (session_id, message_id) DO UPDATE SET
    run_id = excluded.run_id, workflow = excluded.workflow, status = excluded.status, user_id = excluded.user_id,
    trigger = excluded.trigger, created_at = excluded.created_at, ended_at = excluded.ended_at

-- name: delete_some_events
-- A tree with many events is deleted in steps.
DELETE FROM chat_run_events WHERE (run_id, number) IN (
    SELECT e.run_id, e.number FROM (
        SELECT run_id FROM chat_runs WHERE run_id = :root_run_id
        UNION ALL
        SELECT run_id FROM chat_runs WHERE root_run_id = :root_run_id AND parent_run_id IS NOT NULL
    ) t JOIN chat_run_events e ON e.run_id = t.run_id
    LIMIT :limit
)

-- name: delete_trees
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
)
DELETE FROM chat_runs WHERE run_id IN (
    SELECT root_run_id FROM wanted
    UNION ALL
    SELECT c.run_id FROM wanted w JOIN chat_runs c ON c.root_run_id = w.root_run_id AND c.parent_run_id IS NOT NULL
)
RETURNING run_id
