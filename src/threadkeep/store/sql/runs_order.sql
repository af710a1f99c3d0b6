-- The order of the turns of a session: a run may begin if none that arrived before it is queued or at work.

-- name: known
-- The run that has this id, or that a message began or joined; also where only its answer is left. The same
-- places are in `arrive`.
SELECT run_id FROM chat_runs WHERE run_id = :run_id
UNION ALL
SELECT run_id FROM chat_runs WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_run_messages WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_answered_messages WHERE session_id = :session_id AND message_id = :message_id
LIMIT 1

-- name: users_other
-- The session is there, and is not this user's.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id AND (user_id IS NULL OR user_id <> :user_id)

-- name: parent
SELECT root_run_id, depth, status, cancel_requested_at FROM chat_runs WHERE run_id = :parent_run_id

-- name: inside
-- A run above is in the same session: what runs below it is a part of that turn.
WITH RECURSIVE above (parent_run_id, session_id) AS (
    SELECT parent_run_id, session_id FROM chat_runs WHERE run_id = :parent_run_id
    UNION
    SELECT r.parent_run_id, r.session_id FROM above a JOIN chat_runs r ON r.run_id = a.parent_run_id
)
SELECT 1 FROM above WHERE session_id = :session_id LIMIT 1

-- name: open
-- What of a session is queued or at work, in order of arrival.
SELECT run_id, workflow, status, user_id, started_at, root_run_id, cancel_requested_at IS NOT NULL FROM chat_runs
WHERE session_id = :session_id AND arrival IS NOT NULL AND status IN ('queued', 'running')
ORDER BY arrival

-- name: stop_as_it_begins
-- A turn that is queued: whoever begins it ends it, and keeps what it was asked in the transcript.
UPDATE chat_runs SET
    cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason)
WHERE run_id = :run_id AND status = 'queued'

-- name: insert
INSERT INTO chat_runs (
    run_id, session_id, message_id, workflow, status, error, ended_at, version, user_id, parent_run_id, root_run_id, depth,
    node_id, trigger, arrival, input, budget, created_at, deadline_at
)
VALUES (
    :run_id, :session_id, :message_id, :workflow, :status, :error, :ended_at, :version, :user_id, :parent_run_id, :root_run_id,
    :depth, :node_id, :trigger,
    CASE WHEN CAST(:in_order AS BOOLEAN) THEN (
        SELECT coalesce(max(o.arrival), 0) + 1 FROM chat_runs o WHERE o.session_id = :session_id
    ) END,
    :input, :budget, :now, :deadline_at
)

-- name: arrive
-- A run at the top that nothing stands in the way of: not known, of no other user's session, and free to be one of its
-- own. It begins at once for an :owner, if no other turn of its session is open: when the one before it ended, if that
-- happened while this waited for it since :now, and before :latest. CASE takes the type of its ELSE.
INSERT INTO chat_runs (
    run_id, session_id, message_id, workflow, version, user_id, root_run_id, node_id, trigger, input, budget, created_at,
    deadline_at, status, owner, attempts, started_at, heartbeat_at, arrival
)
SELECT
    :run_id, :session_id, :message_id, :workflow, :version, :user_id, :run_id, :node_id, :trigger, :input, :budget, :now,
    :deadline_at,
    CASE WHEN t.begins THEN 'running' ELSE 'queued' END,
    CASE WHEN t.begins THEN :owner END,
    CASE WHEN t.begins THEN 1 ELSE 0 END,
    CASE WHEN NOT t.begins THEN NULL WHEN t.ended > :now AND t.ended < :latest THEN t.ended ELSE :now END,
    CASE WHEN NOT t.begins THEN NULL WHEN t.ended > :now AND t.ended < :latest THEN t.ended ELSE :now END,
    CASE WHEN CAST(:session_id AS TEXT) IS NOT NULL THEN (
        SELECT coalesce(max(o.arrival), 0) + 1 FROM chat_runs o WHERE o.session_id = :session_id
    ) END
FROM (
    SELECT o.busy, o.ended, CAST(:owner AS TEXT) IS NOT NULL AND NOT o.busy AS begins
    FROM (
        SELECT EXISTS (
            SELECT 1 FROM chat_runs r
            WHERE r.session_id = :session_id AND r.arrival IS NOT NULL AND r.status IN ('queued', 'running')
        ) AS busy, (
            SELECT r.ended_at FROM chat_runs r
            WHERE r.session_id = :session_id AND r.arrival IS NOT NULL ORDER BY r.arrival DESC LIMIT 1
        ) AS ended
    ) o
) t
WHERE (CAST(:policy AS TEXT) = 'enqueue' OR NOT t.busy)
    AND NOT EXISTS (SELECT 1 FROM chat_runs r WHERE r.run_id = :run_id)
    AND NOT EXISTS (SELECT 1 FROM chat_runs r WHERE r.session_id = :session_id AND r.message_id = :message_key)
    AND NOT EXISTS (SELECT 1 FROM chat_run_messages m WHERE m.session_id = :session_id AND m.message_id = :message_key)
    AND NOT EXISTS (
        SELECT 1 FROM chat_answered_messages a WHERE a.session_id = :session_id AND a.message_id = :message_key
    )
    AND NOT EXISTS (
        SELECT 1 FROM chat_sessions s
        WHERE s.session_id = :session_id AND CAST(:user_id AS TEXT) IS NOT NULL
            AND (s.user_id IS NULL OR s.user_id <> :user_id)
    )
RETURNING
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at, version,
    user_id, parent_run_id, root_run_id, depth, node_id, trigger, arrival, input, interrupt, resume_value, budget, attempts,
    cancel_requested_at, cancel_reason, set_aside, created_at, deadline_at

-- name: begun_may_have_checkpoints
INSERT INTO chat_run_checkpoints (run_id)
SELECT r.run_id FROM chat_runs r WHERE r.run_id = :run_id AND r.status = 'running'
ON CONFLICT (run_id) DO NOTHING

-- name: note_active_session_of
-- The same as below, if the run is there.
INSERT INTO chat_active_sessions AS a (user_id, workflow, session_id, since)
SELECT r.user_id, r.workflow, r.session_id, r.created_at FROM chat_runs r WHERE r.run_id = :run_id
ON CONFLICT (user_id, workflow) DO UPDATE SET session_id = excluded.session_id, since = excluded.since
WHERE a.session_id <> excluded.session_id

-- name: input
SELECT input FROM chat_runs WHERE run_id = :run_id

-- name: set_input
UPDATE chat_runs SET input = :input WHERE run_id = :run_id

-- name: join
INSERT INTO chat_run_messages (session_id, message_id, run_id) VALUES (:session_id, :message_id, :run_id)

-- name: begin
-- Also one whose process has not been heard of since :stale. Who has it already goes on with the same try.
UPDATE chat_runs SET
    attempts = attempts + CASE WHEN status = 'running' AND owner = :owner THEN 0 ELSE 1 END,
    status = 'running', owner = :owner, heartbeat_at = :now, started_at = coalesce(started_at, :now)
WHERE run_id = :run_id AND input IS NOT NULL
    AND (status = 'queued' OR (status = 'running' AND (owner = :owner OR heartbeat_at < :stale)))
    AND (arrival IS NULL OR NOT EXISTS (
        SELECT 1 FROM chat_runs o
        WHERE o.session_id = chat_runs.session_id AND o.arrival < chat_runs.arrival AND o.status IN ('queued', 'running')
    ))
RETURNING run_id

-- name: may_have_checkpoints
INSERT INTO chat_run_checkpoints (run_id) VALUES (:run_id) ON CONFLICT (run_id) DO NOTHING

-- name: before
-- The run that is before another one: the last to have arrived of those that are queued or at work.
SELECT o.run_id FROM chat_runs r
JOIN chat_runs o ON o.session_id = r.session_id AND o.arrival < r.arrival AND o.status IN ('queued', 'running')
WHERE r.run_id = :run_id
ORDER BY o.arrival DESC
LIMIT 1

-- name: next
-- The first of a session, if it is not at work already.
SELECT n.run_id FROM (
    SELECT run_id, status FROM chat_runs
    WHERE session_id = :session_id AND arrival IS NOT NULL AND status IN ('queued', 'running')
    ORDER BY arrival
    LIMIT 1
) n
WHERE n.status = 'queued'

-- name: ready
-- What may begin now and was asked for before :before, the longest wait first.
SELECT r.run_id FROM chat_runs r
WHERE r.status = 'queued' AND r.created_at < :before
    AND (r.arrival IS NULL OR NOT EXISTS (
        SELECT 1 FROM chat_runs o
        WHERE o.session_id = r.session_id AND o.arrival < r.arrival AND o.status IN ('queued', 'running')
    ))
ORDER BY r.created_at, r.run_id
LIMIT :limit

-- name: abandoned
-- What is at work by a process that has not been heard of since :stale.
SELECT run_id FROM chat_runs
WHERE status = 'running' AND input IS NOT NULL AND heartbeat_at < :stale
ORDER BY heartbeat_at, run_id
LIMIT :limit

-- name: note_active_session
INSERT INTO chat_active_sessions AS a (user_id, workflow, session_id, since)
VALUES (:user_id, :workflow, :session_id, :now)
ON CONFLICT (user_id, workflow) DO UPDATE SET session_id = excluded.session_id, since = excluded.since
WHERE a.session_id <> excluded.session_id

-- name: begin_active_session
-- Unless there is one that the user may go on with.
INSERT INTO chat_active_sessions AS a (user_id, workflow, session_id, since)
VALUES (:user_id, :workflow, :session_id, :now)
ON CONFLICT (user_id, workflow) DO UPDATE SET session_id = excluded.session_id, since = excluded.since
WHERE EXISTS (
    SELECT 1 FROM chat_sessions s
    WHERE s.session_id = a.session_id AND (NOT s.active OR s.user_id IS NULL OR s.user_id <> a.user_id)
)

-- name: active_session
SELECT session_id FROM chat_active_sessions WHERE user_id = :user_id AND workflow = :workflow
