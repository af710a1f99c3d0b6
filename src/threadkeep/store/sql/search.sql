-- Statements for the update of the search index of either engine.

-- name: to_index
-- Sessions with unindexed messages: of one user, one session, or all. PostgreSQL assumes that a third of all sessions
-- have such messages; without an order it would search the whole table for them, instead of the index of these sessions.
SELECT session_id, indexed_seq, last_seq FROM chat_sessions
WHERE indexed_seq < last_seq
    AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)
    AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id)
ORDER BY session_id
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
-- Advance the indexed position only if it is still :after, and the last message that was read (:seq, :id) still exists;
-- if no message was read, only if there is still no message.
UPDATE chat_sessions SET indexed_seq = :upto
WHERE session_id = :session_id AND indexed_seq = :after AND last_seq >= :upto
    AND CASE WHEN CAST(:id AS TEXT) IS NULL
        THEN NOT EXISTS (SELECT 1 FROM chat_messages m WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto)
        ELSE EXISTS (SELECT 1 FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :seq AND m.id = :id)
    END
