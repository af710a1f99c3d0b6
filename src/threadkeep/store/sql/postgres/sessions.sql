-- Rows of sessions (and of runs) that others may not change under a transaction.

-- name: keep_session
-- That it is there, and nobody deletes it before the transaction ends; appends go on.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id FOR KEY SHARE

-- name: keep_run
-- The same of a run.
SELECT run_id FROM chat_runs WHERE run_id = :run_id FOR KEY SHARE

-- name: hold_session
-- Nobody appends to it, resets it or holds it before the transaction ends.
SELECT reset_seq, archived_seq, last_seq FROM chat_sessions WHERE session_id = :session_id FOR NO KEY UPDATE
