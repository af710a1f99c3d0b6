-- SQLite's form of statements that lock rows on PostgreSQL. SQLite executes one write transaction at a time.

-- name: keep_run
-- The write lock of the transaction already keeps the run unchanged.
SELECT owner FROM chat_runs WHERE run_id = :run_id

-- name: disown
UPDATE chat_runs SET heartbeat_at = :disowned WHERE owner = :owner AND status = 'running' AND heartbeat_at <> :disowned
RETURNING run_id
