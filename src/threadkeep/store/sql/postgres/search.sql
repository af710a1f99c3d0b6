-- The search index on PostgreSQL: fingerprints of words and character pairs. `partitioned_search.sql` has the
-- statements that differ if the index is partitioned.

-- name: is_partitioned
SELECT relkind = 'p' FROM pg_class WHERE oid = CAST('chat_search' AS REGCLASS)

-- name: add_text
INSERT INTO chat_search (document, terms)
SELECT r.document, r.terms FROM json_to_recordset(:rows) AS r (document BIGINT, terms SMALLINT[])
ON CONFLICT (document) DO NOTHING

-- name: forget_range
DELETE FROM chat_search f USING chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND f.document = m.document

-- name: found
-- Messages that may have the words (candidates). Each scope has its own statement, because PostgreSQL caches one plan
-- per statement: a plan for all messages would also read all of them for one user.
SELECT f.document FROM chat_search f WHERE f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_user
SELECT m.document
FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_search f ON f.document = m.document
WHERE s.user_id = :user_id AND m.seq > s.archived_seq AND m.superseded_at IS NULL AND f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_session
SELECT m.document
FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_search f ON f.document = m.document
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND m.seq > s.archived_seq AND m.seq > :after AND m.superseded_at IS NULL AND f.terms @> CAST(:terms AS SMALLINT[])

-- name: ranked
-- The best rows of `found`, the WITH query before this. Reading and scoring texts takes time, so only the newest
-- :candidates are scored; the patterns drop candidates of which only the fingerprints match. The score is BM25 of the
-- count of each word (at least one, because capitals of other alphabets are not counted), and of the length of the text
-- relative to 500 characters. OFFSET 0 reads each text only when it is needed. NATURAL JOIN compares all columns of
-- `found`: the document, and in partitions also the session and seq.
SELECT
    m.session_id, r.score, m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
    m.metadata, m.original, m.sent_at, m.created_at, m.author, m.answers, m.ordinal
FROM (
    SELECT m.*
    FROM (SELECT * FROM found ORDER BY document DESC) f
    CROSS JOIN LATERAL (
        SELECT m.* FROM (SELECT f.*) k NATURAL JOIN chat_messages m JOIN chat_sessions s ON s.session_id = m.session_id
        WHERE m.seq > s.archived_seq AND m.superseded_at IS NULL
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
