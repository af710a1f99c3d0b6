-- Rows of sessions whose messages are in a graph store, for SQLite and PostgreSQL.

-- name: indexed
SELECT last_seq, created_at, graph_version, revision FROM chat_sessions WHERE session_id = :session_id

-- name: hold_indexed
-- The same row, locked until the transaction ends.
UPDATE chat_sessions SET active = active WHERE session_id = :session_id RETURNING last_seq, created_at, graph_version, revision

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
-- Change a session's row if it is from the given version of its conversation; the rows of its messages follow.
UPDATE chat_sessions SET
    user_id = :user_id, title = :title, last_message = :last_message, message_count = :message_count,
    last_seq = :last_seq, last_user_seq = :last_user_seq, reset_seq = :reset_seq, indexed_seq = :last_seq,
    archived_seq = :deleted_seq, deleted_seq = :deleted_seq, active = :active, tags = :tags, metadata = :metadata,
    updated_at = :updated_at, graph_version = :graph_version, revision = :revision, parent_session_id = :parent_session_id,
    parent_seq = :parent_seq, agent = :agent
WHERE session_id = :session_id AND graph_version = :former_version AND created_at = :created_at
RETURNING session_id

-- name: index_message
-- Insert the row of a message, without its text, if `index_session` has changed the session's row.
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, sent_at, created_at, author, answers,
    ordinal, told_at, superseded_at, superseded_by
)
SELECT
    :session_id, :seq, :id, :role, '', :tokens, :status, :confidence, :escalated, :run_id, :sent_at, :created_at, :author,
    :answers, :ordinal, :told_at, :superseded_at, :superseded_by
WHERE EXISTS (
    SELECT 1 FROM chat_sessions
    WHERE session_id = :session_id AND graph_version = :graph_version AND created_at = :begun_at
)
RETURNING seq

-- name: hide_before
-- Set the reset behind the last message, which deactivates all summaries.
UPDATE chat_sessions SET reset_seq = last_seq WHERE session_id = :session_id AND reset_seq < last_seq

-- name: any_summary
SELECT 1 FROM chat_summaries WHERE session_id = :session_id LIMIT 1
