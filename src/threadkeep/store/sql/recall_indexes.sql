-- Recall indexes of sessions, each stored as one value.

-- name: index_of
SELECT data FROM chat_recall_indexes
WHERE session_id = :session_id AND version = :version AND last_seq <= :last_seq

-- name: save_index
-- Save an index only if the session has not changed since the index was begun, so that erased texts do not return with
-- it.
INSERT INTO chat_recall_indexes (session_id, version, last_seq, data)
SELECT s.session_id, :version, :last_seq, :data FROM chat_sessions s
WHERE s.session_id = :session_id AND s.created_at = :created_at AND s.revision = :revision AND s.graph_version IS NULL
    AND s.reset_seq < :begin AND s.archived_seq < :begin AND s.deleted_seq < :begin AND s.last_seq >= :last_seq
-- include: hold_s
ON CONFLICT (session_id) DO UPDATE SET
    version = excluded.version, last_seq = excluded.last_seq, data = excluded.data

-- name: delete_index
DELETE FROM chat_recall_indexes WHERE session_id = :session_id
