-- Statements that lock sessions (and runs) on PostgreSQL. On SQLite, the write lock of the transaction is enough.

-- name: keep_session
-- Read the session, which cannot be deleted before the transaction ends.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id

-- name: keep_run
-- Read a run, which cannot be deleted before the transaction ends.
SELECT run_id FROM chat_runs WHERE run_id = :run_id

-- name: hold_s
-- Included by other statements; empty, because SQLite needs no lock here.

-- name: skip_held
-- Included by other statements; empty, because no other transaction can have locked rows.

-- name: hold_session
-- Read the session, which no other transaction can change before this one ends.
SELECT reset_seq, archived_seq, last_seq, revision FROM chat_sessions WHERE session_id = :session_id
