-- Locks of the rows of sessions (and of runs). On SQLite the write lock of the transaction is enough.

-- name: keep_session
-- Read the session, which cannot be deleted before the transaction ends.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id

-- name: keep_run
-- The same for a run.
SELECT run_id FROM chat_runs WHERE run_id = :run_id

-- name: hold_s
-- Included by other statements; empty, because SQLite needs no lock here.

-- name: skip_held
-- The same.

-- name: hold_session
-- Lock against appends, resets and other locks until the transaction ends.
SELECT reset_seq, archived_seq, last_seq, revision FROM chat_sessions WHERE session_id = :session_id
