-- The trigram index on SQLite.

-- name: add_text
INSERT INTO chat_search (rowid, content)
SELECT m.document, m.content FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    AND NOT EXISTS (SELECT 1 FROM chat_search_docsize d WHERE d.id = m.document)

-- name: forget_range
-- Delete only indexed texts: deleting a text that FTS5 does not have damages the index.
INSERT INTO chat_search (chat_search, rowid, content)
SELECT 'delete', m.document, m.content
FROM chat_messages m JOIN chat_search_docsize d ON d.id = m.document
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto

-- name: indexed
SELECT archived_seq, indexed_seq FROM chat_sessions WHERE session_id = :session_id

-- name: unindex
-- Messages after :after are not indexed any more, so a later step of the index adds those that still exist.
UPDATE chat_sessions SET indexed_seq = :after WHERE session_id = :session_id AND indexed_seq > :after

-- name: occurrences
-- The number of texts with the trigrams of each word, and of all texts.
SELECT (SELECT count(*) FROM chat_search WHERE chat_search MATCH e.value), (SELECT count(*) FROM chat_search_docsize)
FROM json_each(:expressions) e
ORDER BY e.key

-- name: match
-- If a text has the trigrams of the words but not the words, its relevance is NULL. CROSS JOIN keeps the order of the
-- tables: the owner is checked before the text is read, and only the best rows are read completely. Reading and scoring
-- texts takes time, so only the newest :candidates are scored. LIMIT -1 keeps their order, and prevents scoring twice.
WITH found (document, score, created_at) AS MATERIALIZED (
    SELECT document, score, created_at
    FROM (
        SELECT m.document, threadkeep_relevance(m.content, :words) AS score, m.created_at
        FROM (SELECT rowid FROM chat_search WHERE chat_search MATCH :expression ORDER BY rowid DESC LIMIT -1) f
        CROSS JOIN chat_messages d ON d.document = f.rowid
        CROSS JOIN chat_sessions s ON s.session_id = d.session_id
        CROSS JOIN chat_messages m ON m.document = d.document
        WHERE (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
            AND (CAST(:session_id AS TEXT) IS NULL OR s.session_id = :session_id)
            AND d.seq > s.archived_seq AND d.seq > :after AND m.superseded_at IS NULL
        LIMIT -1
    )
    WHERE score IS NOT NULL
    LIMIT :candidates
), best (document, score) AS MATERIALIZED (
    SELECT document, score FROM found ORDER BY score DESC, created_at DESC LIMIT :limit
)
SELECT
    m.session_id, b.score, m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
    m.metadata, m.original, m.sent_at, m.created_at, m.author, m.answers, m.ordinal
FROM best b CROSS JOIN chat_messages m ON m.document = b.document
ORDER BY b.score DESC, m.created_at DESC

-- name: short_columns
-- Included by the next statements: words of one or two characters have no trigram; if there are no other words, all
-- texts are read.
SELECT
    m.session_id, 0.0, m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
    m.metadata, m.original, m.sent_at, m.created_at, m.author, m.answers, m.ordinal
FROM chat_sessions s CROSS JOIN chat_messages m ON m.session_id = s.session_id AND m.seq > s.archived_seq

-- name: match_short
-- include: short_columns
WHERE m.superseded_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:patterns) p
        WHERE NOT EXISTS (SELECT 1 FROM json_each(p.value) form WHERE m.content GLOB form.value)
    )
ORDER BY m.created_at DESC
LIMIT :limit

-- name: match_short_of_session
-- include: short_columns
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id) AND m.seq > :after
    AND m.superseded_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:patterns) p
        WHERE NOT EXISTS (SELECT 1 FROM json_each(p.value) form WHERE m.content GLOB form.value)
    )
ORDER BY m.seq DESC
LIMIT :limit

-- name: match_short_of_user
-- include: short_columns
WHERE s.user_id = :user_id AND m.superseded_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:patterns) p
        WHERE NOT EXISTS (SELECT 1 FROM json_each(p.value) form WHERE m.content GLOB form.value)
    )
ORDER BY m.created_at DESC
LIMIT :limit
