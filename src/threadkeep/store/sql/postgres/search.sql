-- The index of words and character pairs on PostgreSQL.

-- name: to_index
SELECT session_id, indexed_seq, last_seq FROM chat_sessions WHERE indexed_seq < last_seq LIMIT :limit

-- name: texts
SELECT seq, id, content FROM chat_messages
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

-- name: add_text
INSERT INTO chat_search (session_id, seq, terms) VALUES (:session_id, :seq, to_tsvector('simple', :terms))
ON CONFLICT (session_id, seq) DO NOTHING

-- name: forget_documents
DELETE FROM chat_search WHERE session_id = :session_id

-- name: match
SELECT
    f.session_id, ts_rank(f.terms, q.query), m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated,
    m.run_id, m.metadata, m.original, m.sent_at, m.created_at
FROM plainto_tsquery('simple', :terms) AS q (query)
JOIN chat_search f ON f.terms @@ q.query
JOIN chat_messages m ON m.session_id = f.session_id AND m.seq = f.seq
JOIN chat_sessions s ON s.session_id = f.session_id
WHERE (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND (CAST(:session_id AS TEXT) IS NULL OR f.session_id = :session_id)
    AND f.seq > s.archived_seq AND f.seq > :after
ORDER BY ts_rank(f.terms, q.query) DESC, m.created_at DESC
LIMIT :limit
