-- The index of the fingerprints of words and character pairs on PostgreSQL.

-- name: add_text
INSERT INTO chat_search (document, terms) VALUES (:document, CAST(:terms AS SMALLINT[]))
ON CONFLICT (document) DO NOTHING

-- name: forget_texts
DELETE FROM chat_search f USING chat_messages m WHERE m.session_id = :session_id AND f.document = m.document

-- name: match
-- By fingerprints; a text that a pattern does not fit only looks the same. Scored as BM25 does: by how often each word is
-- there (at least once, since the capitals of other alphabets are not counted), and by the length of the text beside 500
-- characters. OFFSET 0 keeps PostgreSQL from reading the texts before it knows which.
SELECT
    m.session_id, r.score, m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
    m.metadata, m.original, m.sent_at, m.created_at
FROM (
    SELECT m.*
    FROM chat_search f
    JOIN chat_messages m ON m.document = f.document
    JOIN chat_sessions s ON s.session_id = m.session_id
    WHERE f.terms @> CAST(:terms AS SMALLINT[])
        AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
        AND (CAST(:session_id AS TEXT) IS NULL OR s.session_id = :session_id)
        AND m.seq > s.archived_seq AND m.seq > :after
    OFFSET 0
) m
CROSS JOIN LATERAL (
    SELECT sum(c.times / (c.times + 1.2 * (0.25 + 0.75 * c.extent)))
    FROM (
        SELECT
            CAST(greatest(cardinality(string_to_array(lower(m.content COLLATE "C"), w.word)) - 1, 1) AS DOUBLE PRECISION),
            CAST(length(m.content) AS DOUBLE PRECISION) / 500
        FROM unnest(CAST(:words AS TEXT[])) AS w (word)
    ) AS c (times, extent)
) AS r (score)
WHERE NOT EXISTS (SELECT 1 FROM unnest(CAST(:patterns AS TEXT[])) AS p (pattern) WHERE m.content !~ p.pattern)
ORDER BY r.score DESC, m.created_at DESC
LIMIT :limit
