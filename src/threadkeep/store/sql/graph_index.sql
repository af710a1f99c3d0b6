-- Rows of sessions whose messages are in a graph store; both engines take it as it is.

-- name: indexed
SELECT last_seq, created_at, graph_version FROM chat_sessions WHERE session_id = :session_id

-- name: hold_indexed
-- The same, and nobody else changes it before the transaction ends.
UPDATE chat_sessions SET active = active WHERE session_id = :session_id RETURNING last_seq, created_at, graph_version

-- name: all_indexed
SELECT session_id, graph_version FROM chat_sessions
WHERE graph_version IS NOT NULL AND session_id > :after
ORDER BY session_id
LIMIT :limit

-- name: any_indexed
SELECT session_id FROM chat_sessions WHERE graph_version IS NOT NULL LIMIT 1

-- name: any_kept_here
SELECT session_id FROM chat_sessions WHERE graph_version IS NULL LIMIT 1

-- name: begin_indexing
INSERT INTO chat_sessions (session_id, user_id, graph_version, created_at, updated_at)
VALUES (:session_id, :user_id, -1, :created_at, :updated_at)
ON CONFLICT (session_id) DO NOTHING

-- name: index_session
UPDATE chat_sessions SET
    user_id = :user_id, title = :title, last_message = :last_message, message_count = :last_seq - :deleted_seq,
    last_seq = :last_seq, last_user_seq = :last_user_seq, reset_seq = :reset_seq, indexed_seq = :last_seq,
    archived_seq = :deleted_seq, deleted_seq = :deleted_seq, active = :active, tags = :tags, metadata = :metadata,
    updated_at = :updated_at, graph_version = :graph_version
WHERE session_id = :session_id

-- name: index_message
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, sent_at, created_at
)
VALUES (
    :session_id, :seq, :id, :role, '', :tokens, :status, :confidence, :escalated, :run_id, :sent_at, :created_at
)

-- name: hide_before
-- What stands for messages before a reset does not count from now on.
UPDATE chat_sessions SET reset_seq = last_seq WHERE session_id = :session_id AND reset_seq < last_seq
