-- Runs: their owners and ends.

-- name: rows
WITH wanted (run_id) AS (
VALUES (:run_id)
)
SELECT
    r.run_id, r.session_id, r.message_id, r.workflow, r.status, r.owner, r.result, r.error, r.started_at, r.heartbeat_at,
    r.ended_at, r.version, r.user_id, r.parent_run_id, r.root_run_id, r.depth, r.node_id, r.trigger, r.arrival, r.input,
    r.interrupt, r.resume_value, r.budget, r.attempts, r.cancel_requested_at, r.cancel_reason, r.set_aside, r.created_at,
    r.deadline_at
FROM wanted w JOIN chat_runs r ON r.run_id = w.run_id

-- name: answered
-- The record that a deleted run answered a message; it stays because the platform may send the message again.
SELECT run_id, session_id, message_id, workflow, status, user_id, trigger, created_at, ended_at
FROM chat_answered_messages
WHERE run_id = :run_id
ORDER BY message_id
LIMIT 1

-- name: owners
-- The processes that own running runs and were not found dead.
SELECT DISTINCT owner FROM chat_runs WHERE status = 'running' AND owner IS NOT NULL AND heartbeat_at <> :disowned

-- name: held
-- Runs that an owner executes, with the reason to stop them, if any.
SELECT run_id, CASE WHEN cancel_requested_at IS NULL THEN NULL ELSE coalesce(cancel_reason, '') END
FROM chat_runs
WHERE owner = :owner AND status = 'running'

-- name: begin_with
-- Set the workflow version of a run that has executed nothing yet.
UPDATE chat_runs SET version = :version WHERE run_id = :run_id AND owner = :owner AND status = 'running'

-- name: message_texts
-- The text of a message in a run's session; for a superseded answer, the text of the answer that replaced it.
SELECT m.id, coalesce(s.content, m.content)
FROM chat_runs r
JOIN chat_messages m ON m.session_id = r.session_id AND m.id = :message_id
LEFT JOIN chat_messages s
    ON s.session_id = m.session_id AND s.id = m.superseded_by AND m.role = 'assistant' AND s.role = 'assistant'
WHERE r.run_id = :run_id

-- name: finish
-- The text of the result is stored by reference if the transcript has it, and so is the text of a single input; while
-- a run is running, its input does not change. A run that was asked to roll back cannot be done. The ELSE of `result` is
-- never reached, but gives the CASE its type.
UPDATE chat_runs SET
    status = :status,
    result = CASE
        WHEN EXISTS (
            SELECT 1 FROM chat_messages m
            WHERE m.session_id = chat_runs.session_id AND m.id = :message_id AND m.content = :text
        ) THEN :short_result
        WHEN TRUE THEN :result
        ELSE chat_runs.result
    END,
    input = CASE
        WHEN EXISTS (
            SELECT 1 FROM chat_messages m
            WHERE m.session_id = chat_runs.session_id AND m.id = chat_runs.message_id AND m.content = :asked
        ) THEN :short_input
        ELSE chat_runs.input
    END,
    error = :error, set_aside = :set_aside, ended_at = :now, heartbeat_at = NULL
WHERE run_id = :run_id AND owner = :owner AND status = 'running'
    AND (:status <> 'done' OR cancel_reason IS NULL OR cancel_reason <> :rolled_back)
    AND (CAST(:attempt AS BIGINT) IS NULL OR attempts = CAST(:attempt AS BIGINT))
RETURNING
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at, version,
    user_id, parent_run_id, root_run_id, depth, node_id, trigger, arrival, input, interrupt, resume_value, budget, attempts,
    cancel_requested_at, cancel_reason, set_aside, created_at, deadline_at

-- name: refuse_unless_ended
-- Unless this owner has ended the run and its answer is in the transcript, fail by inserting two equal rows, which
-- violates the key.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT :session_id, :answer_id, 0, :now
FROM (SELECT 1 UNION ALL SELECT 2) AS two_rows
WHERE NOT EXISTS (
    SELECT 1 FROM chat_runs r JOIN chat_messages m ON m.session_id = r.session_id AND m.id = :answer_id
    WHERE r.run_id = :run_id AND r.owner = :owner AND r.status = :status AND r.ended_at = :now
)

-- name: has_following
-- Return a row if another run may wait for this run: in its session, or because either has a position in a
-- conversation.
SELECT 1 FROM chat_runs n
WHERE n.session_id = :session_id AND n.status IN ('queued', 'running') AND n.status = 'queued'
UNION ALL
SELECT 1 FROM chat_run_places p WHERE p.run_id = :run_id
UNION ALL
SELECT 1 FROM chat_run_places p WHERE p.place = :session_id
LIMIT 1

-- name: ended
-- Return the run if this owner has already ended it with the same status.
SELECT
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at, version,
    user_id, parent_run_id, root_run_id, depth, node_id, trigger, arrival, input, interrupt, resume_value, budget, attempts,
    cancel_requested_at, cancel_reason, set_aside, created_at, deadline_at
FROM chat_runs
WHERE run_id = :run_id AND owner = :owner AND status = :status

-- name: set_aside
UPDATE chat_runs SET status = 'failed', error = :error, set_aside = TRUE, ended_at = :now
WHERE run_id = :run_id AND status IN ('queued', 'running')

-- name: wait
-- A run that was asked to stop does not start to wait.
UPDATE chat_runs SET status = 'waiting', interrupt = :interrupt, resume_value = NULL, owner = NULL, heartbeat_at = NULL
WHERE run_id = :run_id AND owner = :owner AND status = 'running' AND cancel_requested_at IS NULL

-- name: give_back
-- The run keeps its position as the first of its session.
UPDATE chat_runs SET status = 'queued', owner = NULL, heartbeat_at = NULL, attempts = attempts - 1
WHERE run_id = :run_id AND owner = :owner AND status = 'running' AND cancel_requested_at IS NULL

-- name: note_workflow_gone
-- Tell people why a run waits: a worker has no workflow of its name. `begin` clears the error. Leave a run that another
-- process executes unchanged.
UPDATE chat_runs SET error = 'WorkflowGone'
WHERE run_id = :run_id AND (status = 'queued' OR (status = 'running' AND heartbeat_at = :disowned))

-- name: owe_again
-- If a channel delivered the question of a run or its failure, it must also deliver the answer, to the newest address.
UPDATE chat_outbox SET
    status = 'waiting', owner = NULL, owned_until = NULL, content = NULL, partial = NULL, parts_sent = 0, tries = 0,
    uncertain = FALSE, error = NULL, ended_at = NULL, next_try_at = :now, created_at = :now,
    address = (
        SELECT s.address FROM chat_channel_sessions s
        WHERE s.session_id = chat_outbox.session_id AND s.channel = chat_outbox.channel
    )
WHERE status IN ('ready', 'failed', 'delivered', 'nothing')
    AND session_id = (SELECT r.session_id FROM chat_runs r WHERE r.run_id = :run_id)
    AND message_id IN (
        SELECT r.message_id FROM chat_runs r WHERE r.run_id = :run_id
        UNION ALL
        SELECT m.message_id FROM chat_run_messages m WHERE m.run_id = :run_id
    )
    AND EXISTS (
        SELECT 1 FROM chat_channel_sessions s
        WHERE s.session_id = chat_outbox.session_id AND s.channel = chat_outbox.channel
    )

-- name: take_reply
-- Record that a message of the session answers the question of a run, unless the message is known already.
INSERT INTO chat_run_messages (session_id, message_id, run_id)
SELECT r.session_id, CAST(:message_id AS TEXT), r.run_id
FROM chat_runs r
WHERE r.run_id = :run_id AND r.status = 'waiting'
    AND NOT EXISTS (SELECT 1 FROM chat_runs k WHERE k.session_id = r.session_id AND k.message_id = :message_id)
    AND NOT EXISTS (SELECT 1 FROM chat_run_messages k WHERE k.session_id = r.session_id AND k.message_id = :message_id)
    AND NOT EXISTS (SELECT 1 FROM chat_answered_messages k WHERE k.session_id = r.session_id AND k.message_id = :message_id)
ON CONFLICT (session_id, message_id) DO NOTHING
RETURNING run_id

-- name: has_reply
SELECT 1 FROM chat_run_messages WHERE session_id = :session_id AND message_id = :message_id AND run_id = :run_id

-- name: note_reply
UPDATE chat_runs SET interrupt = :interrupt WHERE run_id = :run_id

-- name: resume
UPDATE chat_runs SET
    status = 'queued', resume_value = :resume_value, attempts = 0,
    arrival = CASE WHEN arrival IS NULL THEN NULL ELSE (
        SELECT max(n.arrival) + 1 FROM (
            SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = chat_runs.session_id
            UNION ALL
            SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = chat_runs.session_id
        ) n
    ) END
WHERE run_id = :run_id AND status = 'waiting' AND (CAST(:asked AS TEXT) IS NULL OR CAST(interrupt AS TEXT) = :asked)

-- name: retry
-- A run keeps a person's answer, because it may have ended before it used the answer. A run with children drops an
-- answer that a process may have used, because the retry also continues children that were stopped.
UPDATE chat_runs SET
    resume_value = CASE
        WHEN status = 'interrupted' AND attempts <= 1 THEN resume_value
        WHEN EXISTS (SELECT 1 FROM chat_runs c WHERE c.parent_run_id = chat_runs.run_id) THEN NULL
        ELSE resume_value
    END,
    status = 'queued', owner = NULL, heartbeat_at = NULL, result = NULL, error = NULL, ended_at = NULL, attempts = 0,
    set_aside = FALSE, cancel_requested_at = NULL, cancel_reason = NULL,
    budget = CASE WHEN CAST(:has_budget AS BOOLEAN) THEN :budget ELSE chat_runs.budget END,
    arrival = CASE WHEN arrival IS NULL THEN NULL ELSE (
        SELECT max(n.arrival) + 1 FROM (
            SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = chat_runs.session_id
            UNION ALL
            SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = chat_runs.session_id
        ) n
    ) END
WHERE run_id = :run_id AND status IN ('failed', 'cancelled', 'interrupted') AND input IS NOT NULL

-- name: arrive_again
-- Move a requeued run to the end of each conversation in which it has a position.
UPDATE chat_run_places SET arrival = (
    SELECT max(n.arrival) + 1 FROM (
        SELECT max(o.arrival) AS arrival FROM chat_runs o WHERE o.session_id = chat_run_places.place
        UNION ALL
        SELECT max(p.arrival) AS arrival FROM chat_run_places p WHERE p.place = chat_run_places.place
    ) n
)
WHERE run_id = :run_id

-- name: root
SELECT root_run_id FROM chat_runs WHERE run_id = :run_id

-- name: cancel
-- The run and all its descendants: runs that no process executes end at once, running ones are asked to stop.
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM chat_runs WHERE run_id = :run_id
    UNION
    SELECT c.run_id FROM below b JOIN chat_runs c ON c.parent_run_id = b.run_id
)
UPDATE chat_runs SET
    ended_at = CASE WHEN status = 'running' THEN ended_at ELSE :now END,
    cancel_requested_at = coalesce(cancel_requested_at, :now),
    cancel_reason = coalesce(cancel_reason, :reason),
    status = CASE WHEN status = 'running' THEN 'running' ELSE 'cancelled' END
WHERE run_id IN (SELECT run_id FROM below) AND status IN ('queued', 'running', 'waiting')
RETURNING run_id, status, started_at
