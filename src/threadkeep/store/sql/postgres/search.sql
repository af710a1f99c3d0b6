-- The index of the fingerprints of words and character pairs on PostgreSQL.

-- name: add_text
INSERT INTO chat_search (document, terms) VALUES (:document, CAST(:terms AS SMALLINT[]))
ON CONFLICT (document) DO NOTHING

-- name: forget_texts
DELETE FROM chat_search f USING chat_messages m WHERE m.session_id = :session_id AND f.document = m.document

-- name: found
-- What may have the words. Each place has a statement of its own: PostgreSQL keeps one plan for all that a statement is
-- asked, and a plan that serves everybody's messages reads all of them for one user's.
SELECT f.document FROM chat_search f WHERE f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_user
SELECT m.document
FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_search f ON f.document = m.document
WHERE s.user_id = :user_id AND m.seq > s.archived_seq AND f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_session
SELECT m.document
FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_search f ON f.document = m.document
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND m.seq > s.archived_seq AND m.seq > :after AND f.terms @> CAST(:terms AS SMALLINT[])

-- name: ranked
-- The best of what was `found`, which comes before this. Reading and scoring a text is what takes time, so of very many
-- only those that were stored last are scored; what only has the fingerprint (a pattern does not fit it) is none of them.
-- Scored as BM25 does: by how often each word is there (at least once, since the capitals of other alphabets are not
-- counted), and by the length of the text beside 500 characters. OFFSET 0 has each text read when its turn comes.
SELECT
    m.session_id, r.score, m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
    m.metadata, m.original, m.sent_at, m.created_at
FROM (
    SELECT m.*
    FROM (SELECT document FROM found ORDER BY document DESC) f
    CROSS JOIN LATERAL (
        SELECT m.* FROM chat_messages m JOIN chat_sessions s ON s.session_id = m.session_id
        WHERE m.document = f.document AND m.seq > s.archived_seq
            AND NOT EXISTS (SELECT 1 FROM unnest(CAST(:patterns AS TEXT[])) AS p (pattern) WHERE m.content !~ p.pattern)
        OFFSET 0
    ) m
    LIMIT :candidates
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
ORDER BY r.score DESC, m.created_at DESC
LIMIT :limit
