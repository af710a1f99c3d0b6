-- Statements that lock rows on PostgreSQL. On SQLite they need no lock, because it executes one write transaction at a
-- time.

-- name: keep_run
-- The owner of a run; the write lock of the transaction already prevents changes.
SELECT owner FROM chat_runs WHERE run_id = :run_id

-- name: disown
UPDATE chat_runs SET heartbeat_at = :disowned WHERE owner = :owner AND status = 'running' AND heartbeat_at <> :disowned
RETURNING run_id
