-- The order of turns: a run may begin if no earlier run in its session, or in a conversation that its agents store
-- under their own keys, is queued or running. The view chat_runs_before has these earlier runs.

-- name: known
-- The run with this id, or the run that the message began or joined; also a deleted run that answered the message.
-- `arrive` checks the same tables.
SELECT run_id FROM chat_runs WHERE run_id = :run_id
UNION ALL
SELECT run_id FROM chat_runs WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_run_messages WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_answered_messages WHERE session_id = :session_id AND message_id = :message_id
LIMIT 1

-- name: release_message
-- The run keeps its full input but loses the message id, because another run will answer the message again.
UPDATE chat_runs SET message_id = NULL, input = :input
WHERE run_id = :run_id AND session_id = :session_id AND message_id = :message_id

-- name: release_joined
DELETE FROM chat_run_messages WHERE session_id = :session_id AND message_id = :message_id

-- name: release_answered
DELETE FROM chat_answered_messages WHERE session_id = :session_id AND message_id = :message_id

-- name: users_other
-- Return a row if the session exists and does not belong to this user.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id AND (user_id IS NULL OR user_id <> :user_id)

-- name: parent
SELECT root_run_id, depth, status, cancel_requested_at FROM chat_runs WHERE run_id = :parent_run_id

-- name: inside
-- Return a row if an ancestor is in the same conversation; the run then belongs to the ancestor's turn.
WITH RECURSIVE above (run_id, parent_run_id, session_id) AS (
    SELECT run_id, parent_run_id, session_id FROM chat_runs WHERE run_id = :parent_run_id
    UNION
    SELECT r.run_id, r.parent_run_id, r.session_id FROM above a JOIN chat_runs r ON r.run_id = a.parent_run_id
)
SELECT 1 FROM above a
WHERE a.session_id = :place OR EXISTS (
    SELECT 1 FROM chat_run_places p WHERE p.run_id = a.run_id AND p.place = :place
)
LIMIT 1

-- name: open
-- Queued and running runs of the given conversations, in the order of their arrival.
WITH wanted (place) AS (
VALUES (:place)
), turns (run_id, arrival) AS (
    SELECT r.run_id, r.arrival
    FROM wanted w JOIN chat_runs r ON r.session_id = w.place
    WHERE r.arrival IS NOT NULL AND r.status IN ('queued', 'running')
    UNION ALL
    SELECT p.run_id, p.arrival
    FROM wanted w JOIN chat_run_places p ON p.place = w.place JOIN chat_runs r ON r.run_id = p.run_id
    WHERE r.status IN ('queued', 'running')
)
SELECT
    r.run_id, r.workflow, r.status, r.user_id, r.started_at, r.root_run_id, r.cancel_requested_at IS NOT NULL, r.session_id
FROM (SELECT run_id, max(arrival) AS arrival FROM turns GROUP BY run_id) t JOIN chat_runs r ON r.run_id = t.run_id
ORDER BY t.arrival, r.run_id

-- name: stop_as_it_begins
-- Mark a queued run to be stopped. The process that begins the run then ends it, and stores its question in the
-- transcript.
UPDATE chat_runs SET
    cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason)
WHERE run_id = :run_id AND status = 'queued'

-- name: open_beside
-- Return a row if another run is queued or running in the conversations of a run.
SELECT 1 FROM chat_runs r JOIN chat_runs o ON o.session_id = r.session_id
WHERE r.run_id = :run_id AND o.run_id <> r.run_id AND o.arrival IS NOT NULL AND o.status IN ('queued', 'running')
UNION ALL
SELECT 1
FROM chat_run_places r JOIN chat_run_places p ON p.place = r.place JOIN chat_runs o ON o.run_id = p.run_id
WHERE r.run_id = :run_id AND o.run_id <> r.run_id AND o.status IN ('queued', 'running')
LIMIT 1

-- name: places_of
SELECT place FROM chat_run_places WHERE run_id = :run_id ORDER BY place

-- name: take_place
-- Add a run at the end of a conversation's order, unless it already has a position there or has ended.
INSERT INTO chat_run_places (place, run_id, arrival)
SELECT :place, r.run_id, (
    SELECT coalesce(max(n.arrival), 0) + 1 FROM (
        SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = :place
        UNION ALL
        SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = :place
    ) n
)
FROM chat_runs r
WHERE r.run_id = :run_id AND r.status IN ('queued', 'running')
    AND NOT EXISTS (SELECT 1 FROM chat_run_places p WHERE p.place = :place AND p.run_id = :run_id)

-- name: leave_place
DELETE FROM chat_run_places WHERE place = :place AND run_id = :run_id

-- name: forget_place
-- Delete the positions of finished runs in an erased conversation.
DELETE FROM chat_run_places
WHERE place = :place AND EXISTS (
    SELECT 1 FROM chat_runs r
    WHERE r.run_id = chat_run_places.run_id AND r.status NOT IN ('queued', 'running', 'waiting')
)

-- name: forget_places
-- Delete the positions of a run that is done. Other runs keep theirs, because they can be retried.
DELETE FROM chat_run_places
WHERE run_id = :run_id AND EXISTS (SELECT 1 FROM chat_runs r WHERE r.run_id = :run_id AND r.status = 'done')

-- name: before_in
-- Earlier runs of a conversation that are queued or running.
SELECT 1 FROM chat_run_places m
WHERE m.place = :place AND m.run_id = :run_id AND (
    EXISTS (
        SELECT 1 FROM chat_run_places p JOIN chat_runs o ON o.run_id = p.run_id
        WHERE p.place = m.place AND p.arrival < m.arrival AND o.status IN ('queued', 'running')
    )
    OR EXISTS (
        SELECT 1 FROM chat_runs o
        WHERE o.session_id = m.place AND o.arrival < m.arrival AND o.status IN ('queued', 'running')
            AND o.run_id <> m.run_id
    )
)

-- name: awaited
-- The runs for which a run waits: earlier ones, and its own children that are queued or running.
SELECT b.before_run_id FROM chat_runs_before b WHERE b.run_id = :run_id
UNION ALL
SELECT c.run_id FROM chat_runs c WHERE c.parent_run_id = :run_id AND c.status IN ('queued', 'running')

-- name: insert
INSERT INTO chat_runs (
    run_id, session_id, message_id, workflow, status, error, ended_at, version, user_id, parent_run_id, root_run_id, depth,
    node_id, trigger, arrival, input, budget, created_at, deadline_at
)
VALUES (
    :run_id, :session_id, :message_id, :workflow, :status, :error, :ended_at, :version, :user_id, :parent_run_id, :root_run_id,
    :depth, :node_id, :trigger,
    CASE WHEN CAST(:in_order AS BOOLEAN) THEN (
        SELECT coalesce(max(n.arrival), 0) + 1 FROM (
            SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = :session_id
            UNION ALL
            SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = :session_id
        ) n
    ) END,
    :input, :budget, :now, :deadline_at
)

-- name: arrive
-- Insert a top-level run if nothing blocks it: it is not known, its session is not another user's, and it need not join
-- another run. With an :owner it begins at once, if no other turn of its session is open. Its start is the end of the
-- previous run, if that ended during the wait (after :now, before :latest). The type of CASE is the type of its ELSE.
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
        SELECT coalesce(max(n.arrival), 0) + 1 FROM (
            SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = :session_id
            UNION ALL
            SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = :session_id
        ) n
    ) END
FROM (
    SELECT o.busy, o.ended, CAST(:owner AS TEXT) IS NOT NULL AND NOT o.busy AS begins
    FROM (
        SELECT EXISTS (
            SELECT 1 FROM chat_runs r
            WHERE r.session_id = :session_id AND r.arrival IS NOT NULL AND r.status IN ('queued', 'running')
        ) OR EXISTS (
            SELECT 1 FROM chat_run_places p JOIN chat_runs r ON r.run_id = p.run_id
            WHERE p.place = :session_id AND r.status IN ('queued', 'running')
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
RETURNING status, owner, started_at, arrival

-- name: refuse_unless_begun
-- Unless the run has begun for this owner and its question is in the transcript, fail by inserting two equal rows,
-- which violates the key.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT :session_id, :question_id, 0, :now
FROM (SELECT 1 UNION ALL SELECT 2) AS two_rows
WHERE NOT EXISTS (
    SELECT 1 FROM chat_runs r JOIN chat_messages m ON m.session_id = r.session_id AND m.id = :question_id
    WHERE r.run_id = :run_id AND r.owner = :owner AND r.status = 'running'
)

-- name: note_active_session_of
-- Note the active session as `note_active_session` does, but only if the run exists.
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

-- name: is_new
SELECT run_id FROM chat_runs WHERE run_id = :run_id AND started_at IS NULL

-- name: begin
-- Also begins a run with a dead owner. The current owner of a run continues the same attempt.
UPDATE chat_runs SET
    attempts = attempts + CASE WHEN status = 'running' AND owner = :owner THEN 0 ELSE 1 END,
    status = 'running', owner = :owner, heartbeat_at = :now, started_at = coalesce(started_at, :now), error = NULL
WHERE run_id = :run_id AND input IS NOT NULL
    AND (status = 'queued' OR (status = 'running' AND (owner = :owner OR heartbeat_at = :disowned)))
    AND NOT EXISTS (SELECT 1 FROM chat_runs_before b WHERE b.run_id = chat_runs.run_id)
RETURNING run_id

-- name: before
-- One of the earlier runs. When that run is over, its process begins the runs that follow.
SELECT b.before_run_id FROM chat_runs_before b WHERE b.run_id = :run_id LIMIT 1

-- name: is_next
SELECT 1 FROM chat_runs r
WHERE r.run_id = :run_id AND r.status = 'queued'
    AND NOT EXISTS (SELECT 1 FROM chat_runs_before b WHERE b.run_id = r.run_id)

-- name: following
-- Runs that may begin now in the conversations of a run, in order of arrival, and the root of a run if it was queued again.
SELECT r.run_id FROM (
    SELECT n.run_id, n.arrival FROM chat_runs o JOIN chat_runs n ON n.session_id = o.session_id
    WHERE o.run_id = :run_id AND n.status = 'queued' AND n.arrival = (
        SELECT min(f.arrival) FROM chat_runs f WHERE f.session_id = o.session_id AND f.status IN ('queued', 'running')
    )
    UNION ALL
    SELECT n.run_id, p.arrival
    FROM chat_run_places o JOIN chat_run_places p ON p.place = o.place JOIN chat_runs n ON n.run_id = p.run_id
    WHERE o.run_id = :run_id AND n.status = 'queued'
    UNION ALL
    SELECT n.run_id, n.arrival FROM chat_run_places o JOIN chat_runs n ON n.session_id = o.place
    WHERE o.run_id = :run_id AND n.arrival IS NOT NULL AND n.status = 'queued'
    UNION ALL
    SELECT n.run_id, p.arrival
    FROM chat_runs o JOIN chat_run_places p ON p.place = o.session_id JOIN chat_runs n ON n.run_id = p.run_id
    WHERE o.run_id = :run_id AND n.status = 'queued'
    UNION ALL
    SELECT n.run_id, n.arrival FROM chat_runs o JOIN chat_runs n ON n.run_id = o.root_run_id
    WHERE o.run_id = :run_id AND n.status = 'queued'
) r
WHERE NOT EXISTS (SELECT 1 FROM chat_runs_before b WHERE b.run_id = r.run_id)
ORDER BY r.arrival, r.run_id

-- name: ready
-- Runs that may begin now and were requested before :before, the longest wait first. Include runs requested after
-- :ahead, by a clock that is ahead of this one, because the length of their wait is unknown. A session may have thousands
-- of queued runs, so the CASE looks for other earlier runs only for its first one. OFFSET 0 keeps PostgreSQL from joining
-- all runs to find them: most polls find few queued runs.
SELECT r.run_id FROM chat_runs r
WHERE r.status = 'queued' AND (r.created_at < :before OR r.created_at > :ahead)
    AND CASE WHEN r.arrival > (
        SELECT min(f.arrival) FROM chat_runs f WHERE f.session_id = r.session_id AND f.status IN ('queued', 'running')
    ) THEN FALSE ELSE NOT EXISTS (SELECT 1 FROM chat_runs_before b WHERE b.run_id = r.run_id LIMIT 1 OFFSET 0) END
ORDER BY r.created_at, r.run_id
LIMIT :limit

-- name: abandoned
-- Running runs of a process that was found dead. All their heartbeats are equal. Sorting by heartbeat first keeps SQLite
-- from reading all runs in the order of the index of creation times.
SELECT run_id FROM chat_runs
WHERE status = 'running' AND input IS NOT NULL AND heartbeat_at = :disowned
ORDER BY heartbeat_at, created_at, run_id
LIMIT :limit

-- name: note_active_session
INSERT INTO chat_active_sessions AS a (user_id, workflow, session_id, since)
VALUES (:user_id, :workflow, :session_id, :now)
ON CONFLICT (user_id, workflow) DO UPDATE SET session_id = excluded.session_id, since = excluded.since
WHERE a.session_id <> excluded.session_id

-- name: begin_active_session
-- Set the session that the user continues, unless there is one that is active and the user's.
INSERT INTO chat_active_sessions AS a (user_id, workflow, session_id, since)
VALUES (:user_id, :workflow, :session_id, :now)
ON CONFLICT (user_id, workflow) DO UPDATE SET session_id = excluded.session_id, since = excluded.since
WHERE EXISTS (
    SELECT 1 FROM chat_sessions s
    WHERE s.session_id = a.session_id AND (NOT s.active OR s.user_id IS NULL OR s.user_id <> a.user_id)
)

-- name: active_session
SELECT session_id FROM chat_active_sessions WHERE user_id = :user_id AND workflow = :workflow
