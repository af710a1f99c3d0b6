-- Rows of sessions (and of runs) that others may not change under a transaction. On SQLite its write lock does that by itself.

-- name: keep_session
-- That it is there, and nobody deletes it before the transaction ends.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id

-- name: keep_run
-- The same of a run.
SELECT run_id FROM chat_runs WHERE run_id = :run_id

-- name: hold_session
-- Nobody appends to it, resets it or holds it before the transaction ends.
SELECT reset_seq, archived_seq, last_seq FROM chat_sessions WHERE session_id = :session_id
