-- What the search index of either engine is kept up by.

-- name: to_index
-- Of one user or one session, or of all.
SELECT session_id, indexed_seq, last_seq FROM chat_sessions
WHERE indexed_seq < last_seq
    AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)
    AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id)
LIMIT :limit

-- name: unindexed
SELECT coalesce(sum(last_seq - indexed_seq), 0) FROM chat_sessions
WHERE indexed_seq < last_seq
    AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)
    AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id)

-- name: texts
SELECT seq, id, content, document FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND seq <= :upto
ORDER BY seq

-- name: advance
-- Only from where the index was, and only if the last message that was read (:seq, :id; none if there was none) is there.
UPDATE chat_sessions SET indexed_seq = :upto
WHERE session_id = :session_id AND indexed_seq = :after
    AND (
        CAST(:id AS TEXT) IS NULL
        OR EXISTS (SELECT 1 FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :seq AND m.id = :id)
    )
