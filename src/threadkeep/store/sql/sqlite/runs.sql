-- What runs ask in other words of PostgreSQL. On SQLite writers take turns by themselves.

-- name: keep_run
-- That it is there, and stays until the transaction ends.
SELECT owner FROM chat_runs WHERE run_id = :run_id

-- name: keep_alive
UPDATE chat_runs SET heartbeat_at = :now WHERE owner = :owner AND status = 'running'

-- name: disown
UPDATE chat_runs SET heartbeat_at = :never WHERE owner = :owner AND status = 'running'
RETURNING run_id
