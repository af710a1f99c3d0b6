-- Statements of the transcript that both engines take as they are.

-- name: reserve
-- Count a session up by :added and answer its new last_seq, and whether ids of deleted messages are known; makes the session at its first turn. The row stays locked
-- until the transaction ends, so turns of all processes are numbered one after the other. :added = 0 only locks.
-- Another user's session answers nothing and stays as it is.
INSERT INTO chat_sessions AS s (
    session_id, user_id, title, last_message, message_count, last_seq, last_user_seq, created_at, updated_at
)
VALUES (:session_id, :user_id, :title, :last_message, :added, :added, :newest_user, :now, :now)
ON CONFLICT (session_id) DO UPDATE SET
    title = coalesce(s.title, excluded.title),
    last_message = coalesce(excluded.last_message, s.last_message),
    message_count = s.message_count + excluded.message_count,
    last_user_seq = CASE WHEN excluded.last_user_seq > 0 THEN s.last_seq + excluded.last_user_seq ELSE s.last_user_seq END,
    last_seq = s.last_seq + excluded.last_seq,
    updated_at = CASE WHEN excluded.last_seq > 0 AND excluded.updated_at > s.updated_at THEN excluded.updated_at ELSE s.updated_at END
WHERE excluded.user_id IS NULL OR s.user_id = excluded.user_id
RETURNING session_id, last_seq, deleted_seq

-- name: insert_message
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at
)
VALUES (
    :session_id, :seq, :id, :role, :content, :tokens, :status, :confidence, :escalated, :run_id, :metadata, :original,
    :sent_at, :created_at
)

-- name: seq_of
-- Where the message with an id is; or was, and that it was deleted.
SELECT seq, 0 FROM chat_messages WHERE session_id = :session_id AND id = :id
UNION ALL
SELECT seq, 1 FROM chat_deleted_ids WHERE session_id = :session_id AND id = :id

-- name: refuse_deleted_id
-- Breaks the key of its own table when the id is that of a deleted message: it is no more new than one that is there.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT session_id, id, seq, created_at FROM chat_deleted_ids WHERE session_id = :session_id AND id = :id

-- name: refuse_unanswered
-- Breaks the same key, with two rows alike, when what a turn answers is not there.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT :session_id, :answers, 0, :created_at
FROM (SELECT 1 UNION ALL SELECT 2) AS two_rows
WHERE NOT EXISTS (SELECT 1 FROM chat_messages WHERE session_id = :session_id AND id = :answers)

-- name: newest
-- The newest :limit messages before :before, newest first. The lower bound lets PostgreSQL go along the index also where
-- it does not know yet how long sessions are.
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > 0 AND m.seq < :before
ORDER BY m.seq DESC
LIMIT :limit

-- name: newest_of_user
-- The same, for the user who owns the session only.
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id
WHERE s.session_id = :session_id AND s.user_id = :user_id AND m.seq > 0 AND m.seq < :before
ORDER BY m.seq DESC
LIMIT :limit

-- name: recent
-- What was said since the last reset, after what is archived and after :after, newest first, without system rows: the
-- raw material of a window. The lower bound is looked up by itself and the rows are read from one table: so both are
-- bounds of the index, in every plan that PostgreSQL may think of, and no row beyond them is read however long the session.
SELECT m.*, s.reset_seq, s.archived_seq, s.deleted_seq, s.last_user_seq
FROM (
    SELECT
        seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at
    FROM chat_messages
    WHERE session_id = :session_id
        AND seq > (
            SELECT CASE
                WHEN reset_seq >= archived_seq AND reset_seq >= :after THEN reset_seq
                WHEN archived_seq >= :after THEN archived_seq
                ELSE :after
            END
            FROM chat_sessions
            WHERE session_id = :session_id
        )
        AND seq < :before AND role IN ('user', 'assistant')
    ORDER BY seq DESC
    LIMIT :limit
) m
JOIN chat_sessions s ON s.session_id = :session_id
WHERE CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id
ORDER BY m.seq DESC

-- name: newest_user
-- The newest user message between two places, which are both outside.
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq < :before AND m.role = 'user'
ORDER BY m.seq DESC
LIMIT 1

-- name: message_with_id
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM chat_messages m
WHERE m.session_id = :session_id AND m.id = :id

-- name: at_places
WITH wanted (seq) AS (
VALUES (:seq)
)
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM wanted w JOIN chat_messages m ON m.session_id = :session_id AND m.seq = w.seq
ORDER BY m.seq

-- name: answer_of_run
-- The newest answer of a run, looked for in the :reach messages that follow its question.
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= CAST(:after AS BIGINT) + :reach AND m.run_id = :run_id AND m.role = 'assistant'
ORDER BY m.seq DESC
LIMIT 1

-- name: session
SELECT
    session_id, user_id, title, last_message, message_count, last_seq, reset_seq, archived_seq, deleted_seq, retention,
    active, tags, metadata, created_at, updated_at
FROM chat_sessions
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)

-- name: sessions
-- Newest activity first, from the cursor (:updated_at, :session_id) on.
SELECT
    session_id, user_id, title, last_message, message_count, last_seq, reset_seq, archived_seq, deleted_seq, retention,
    active, tags, metadata, created_at, updated_at
FROM chat_sessions
WHERE (updated_at, session_id) < (:updated_at, :session_id)
    AND (CAST(:active AS BOOLEAN) IS NULL OR active = CAST(:active AS BOOLEAN))
    AND (
        CAST(:pattern AS TEXT) IS NULL
        OR lower(coalesce(title, '') || ' ' || coalesce(last_message, '') || ' ' || session_id) LIKE lower(:pattern) ESCAPE '\'
    )
ORDER BY updated_at DESC, session_id DESC
LIMIT :limit

-- name: sessions_of_user
SELECT
    session_id, user_id, title, last_message, message_count, last_seq, reset_seq, archived_seq, deleted_seq, retention,
    active, tags, metadata, created_at, updated_at
FROM chat_sessions
WHERE user_id = :user_id AND (updated_at, session_id) < (:updated_at, :session_id)
    AND (CAST(:active AS BOOLEAN) IS NULL OR active = CAST(:active AS BOOLEAN))
    AND (
        CAST(:pattern AS TEXT) IS NULL
        OR lower(coalesce(title, '') || ' ' || coalesce(last_message, '') || ' ' || session_id) LIKE lower(:pattern) ESCAPE '\'
    )
ORDER BY updated_at DESC, session_id DESC
LIMIT :limit

-- name: set_title
UPDATE chat_sessions SET title = :value WHERE session_id = :session_id

-- name: set_tags
UPDATE chat_sessions SET tags = :value WHERE session_id = :session_id

-- name: set_metadata
UPDATE chat_sessions SET metadata = :value WHERE session_id = :session_id

-- name: set_active
UPDATE chat_sessions SET active = :value WHERE session_id = :session_id

-- name: reset
-- Later windows start after what is there now; the messages stay.
UPDATE chat_sessions SET reset_seq = last_seq
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)
RETURNING reset_seq

-- name: delete_runs
-- Also those that spoke in it and are in no session, as of an agent with a conversation of its own, and the tops of
-- their trees, if those are in none; each with the runs below it that are in none: what was said is in all of these.
WITH RECURSIVE gone (run_id) AS (
    SELECT run_id FROM chat_runs WHERE session_id = :session_id
    UNION
    SELECT t.run_id
    FROM chat_messages m JOIN chat_runs r ON r.run_id = m.run_id JOIN chat_runs t ON t.run_id IN (r.run_id, r.root_run_id)
    WHERE m.session_id = :session_id AND r.session_id IS NULL AND t.session_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone)

-- name: forget_answered
DELETE FROM chat_answered_messages WHERE session_id = :session_id

-- name: forget_active_session
DELETE FROM chat_active_sessions WHERE session_id = :session_id

-- name: lock_session
-- Whoever is at this session ends first; nobody begins before the transaction ends.
UPDATE chat_sessions SET active = active WHERE session_id = :session_id

-- name: delete_session
DELETE FROM chat_sessions WHERE session_id = :session_id
