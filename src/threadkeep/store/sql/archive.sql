-- Restoring exported sessions, on both engines.

-- name: restore_session
-- Insert an exported session, unless it exists. The seq values of its deleted messages are not assigned again.
INSERT INTO chat_sessions (
    session_id, user_id, title, last_seq, reset_seq, indexed_seq, archived_seq, deleted_seq, retention, active, tags, metadata,
    created_at, updated_at, parent_session_id, parent_seq, agent
)
VALUES (
    :session_id, :user_id, :title, :deleted_seq, :reset_seq, :deleted_seq, :deleted_seq, :deleted_seq, :retention, :active, :tags,
    :metadata, :created_at, :updated_at, :parent_session_id, :parent_seq, :agent
)
ON CONFLICT (session_id) DO NOTHING

-- name: insert_restored
-- Insert a message, possibly one that is superseded already. If its question has an active answer of its author, the
-- message is superseded by that answer.
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
    author, answers, ordinal, told_at, superseded_at, superseded_by
)
VALUES (
    :session_id, :seq, :id, :role, :content, :tokens, :status, :confidence, :escalated, :run_id, :metadata, :original,
    :sent_at, :created_at, :author, :answers, :ordinal, :told_at,
    coalesce(:superseded_at, (
        SELECT a.created_at FROM chat_messages a
        WHERE a.session_id = CAST(:session_id AS TEXT) AND a.answers = CAST(:answers AS TEXT)
            AND coalesce(a.author, '') = coalesce(CAST(:author AS TEXT), '')
            AND coalesce(a.ordinal, 1) = coalesce(CAST(:ordinal AS BIGINT), 1)
            AND a.status = 'complete' AND a.superseded_at IS NULL
            AND CAST(:status AS TEXT) = 'complete'
    )),
    coalesce(:superseded_by, (
        SELECT a.id FROM chat_messages a
        WHERE a.session_id = CAST(:session_id AS TEXT) AND a.answers = CAST(:answers AS TEXT)
            AND coalesce(a.author, '') = coalesce(CAST(:author AS TEXT), '')
            AND coalesce(a.ordinal, 1) = coalesce(CAST(:ordinal AS BIGINT), 1)
            AND a.status = 'complete' AND a.superseded_at IS NULL
            AND CAST(:status AS TEXT) = 'complete' AND CAST(:superseded_at AS TEXT) IS NULL
    ))
)

-- name: seqs_of
-- The given message ids that exist, each with the seq of its message.
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

-- name: note_restored
-- Store a new value, which makes all processes drop their cached rows of sessions.
INSERT INTO chat_channel_state (scope, name, value) VALUES ('threadkeep', 'restored', :value)
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value
