-- Statements that lock sessions on PostgreSQL. On SQLite, the write lock of the transaction is enough.

-- name: keep_session
-- Read the session, which cannot be deleted before the transaction ends.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id

-- name: hold_s
-- Included by other statements; empty, because SQLite needs no lock here.

-- name: skip_held
-- Included by other statements; empty, because no other transaction can have locked rows.

-- name: hold_session
-- Read the session, which no other transaction can change before this one ends.
SELECT reset_seq, archived_seq, last_seq, revision FROM chat_sessions WHERE session_id = :session_id
