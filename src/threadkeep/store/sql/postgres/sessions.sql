-- Locks on rows of sessions.

-- name: keep_session
-- Lock a session against deletion until the transaction ends; appends continue.
SELECT created_at FROM chat_sessions WHERE session_id = :session_id FOR KEY SHARE

-- name: hold_s
-- Included by other statements: the same as `hold_session`, for a table `s`.
FOR NO KEY UPDATE OF s

-- name: skip_held
-- Included by other statements: skip rows that another transaction has locked, instead of waiting for it.
FOR UPDATE SKIP LOCKED

-- name: hold_session
-- Lock a session against appends, resets and other locks until the transaction ends.
SELECT reset_seq, archived_seq, last_seq, revision FROM chat_sessions WHERE session_id = :session_id FOR NO KEY UPDATE
