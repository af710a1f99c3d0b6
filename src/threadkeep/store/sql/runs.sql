-- Requests that named their message: claimed by one process, answered once.

-- name: claim
-- The first to come gets the row; everybody else gets nothing and reads who has it.
INSERT INTO chat_runs (run_id, session_id, message_id, workflow, status, owner, started_at, heartbeat_at)
VALUES (:run_id, :session_id, :message_id, :workflow, 'running', :owner, :now, :now)
ON CONFLICT (session_id, message_id) DO NOTHING
RETURNING run_id

-- name: claimed
SELECT run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at
FROM chat_runs
WHERE session_id = :session_id AND message_id = :message_id

-- name: run
SELECT run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at
FROM chat_runs
WHERE run_id = :run_id

-- name: take_over
-- A run that failed, or whose process has not been heard of since :stale, is begun again by :owner.
UPDATE chat_runs SET status = 'running', owner = :owner, error = NULL, ended_at = NULL, heartbeat_at = :now
WHERE session_id = :session_id AND message_id = :message_id
    AND (status IN ('failed', 'interrupted') OR (status = 'running' AND heartbeat_at < :stale))
RETURNING run_id

-- name: heartbeat
UPDATE chat_runs SET heartbeat_at = :now WHERE run_id = :run_id AND owner = :owner AND status = 'running'

-- name: finish
UPDATE chat_runs SET status = :status, result = :result, error = :error, ended_at = :now, heartbeat_at = :now
WHERE run_id = :run_id AND owner = :owner
