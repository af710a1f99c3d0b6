-- Bringing exported sessions back; both engines take it as it is.

-- name: restore_session
-- A session as it was exported, unless it is there already: what was deleted there has its places here too.
INSERT INTO chat_sessions (
    session_id, user_id, title, last_seq, reset_seq, indexed_seq, archived_seq, deleted_seq, retention, active, tags, metadata,
    created_at, updated_at
)
VALUES (
    :session_id, :user_id, :title, :deleted_seq, :reset_seq, :deleted_seq, :deleted_seq, :deleted_seq, :retention, :active, :tags,
    :metadata, :created_at, :updated_at
)
ON CONFLICT (session_id) DO NOTHING

-- name: seqs_of
-- Which of some ids a session has, and where.
WITH wanted (id) AS (
VALUES (:id)
)
SELECT m.id, m.seq FROM wanted w JOIN chat_messages m ON m.session_id = :session_id AND m.id = w.id

-- name: restore_reset
UPDATE chat_sessions SET reset_seq = :reset_seq WHERE session_id = :session_id AND reset_seq < :reset_seq

-- name: restore_archived
UPDATE chat_sessions SET
    archived_seq = :archived_seq,
    indexed_seq = CASE WHEN indexed_seq < :archived_seq THEN :archived_seq ELSE indexed_seq END
WHERE session_id = :session_id AND archived_seq < :archived_seq
