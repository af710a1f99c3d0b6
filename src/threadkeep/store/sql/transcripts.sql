-- Statements on transcripts, for SQLite and PostgreSQL.

-- name: reserve
-- Reserve seq values for :added messages; return the new last_seq, and deleted_seq. Create the session at its first
-- turn. The row stays locked until the transaction ends, so turns of all processes are numbered in sequence. With
-- :added = 0 the statement only locks. If a :user_id is given and the session is not this user's, it returns no row and
-- changes nothing.
INSERT INTO chat_sessions AS s (
    session_id, user_id, title, last_message, message_count, last_seq, last_user_seq, created_at, updated_at,
    parent_session_id, agent
)
VALUES (
    :session_id, :user_id, :title, :last_message, :added, :added, :newest_user, :now, :now, :parent_session_id, :agent
)
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
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
    author, answers, ordinal, told_at
)
VALUES (
    :session_id, :seq, :id, :role, :content, :tokens, :status, :confidence, :escalated, :run_id, :metadata, :original,
    :sent_at, :created_at, :author, :answers, :ordinal, :told_at
)

-- name: insert_marked
-- Insert a message like `insert_message`, possibly one that is superseded already.
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
    author, answers, ordinal, told_at, superseded_at, superseded_by
)
VALUES (
    :session_id, :seq, :id, :role, :content, :tokens, :status, :confidence, :escalated, :run_id, :metadata, :original,
    :sent_at, :created_at, :author, :answers, :ordinal, :told_at, :superseded_at, :superseded_by
)

-- name: complete_answer
-- The complete answer of an author to a question, and whether it was delivered.
SELECT id, seq, told_at IS NOT NULL FROM chat_messages
WHERE session_id = :session_id AND answers = :answers AND coalesce(author, '') = coalesce(:author, '')
    AND coalesce(ordinal, 1) = coalesce(:ordinal, 1) AND status = 'complete' AND superseded_at IS NULL

-- name: mark_told
UPDATE chat_messages SET told_at = coalesce(told_at, :now)
WHERE session_id = :session_id AND id = :id AND superseded_at IS NULL

-- name: supersede
UPDATE chat_messages SET superseded_at = :now, superseded_by = :superseded_by
WHERE session_id = :session_id AND id = :id AND superseded_at IS NULL
RETURNING seq

-- name: seq_of
-- The seq of the message with an id, also of a deleted one.
SELECT seq, 0 FROM chat_messages WHERE session_id = :session_id AND id = :id
UNION ALL
SELECT seq, 1 FROM chat_deleted_ids WHERE session_id = :session_id AND id = :id

-- name: refuse_deleted_id
-- Raise an error by violating the table's key if the id belongs to a deleted message.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT session_id, id, seq, created_at FROM chat_deleted_ids WHERE session_id = :session_id AND id = :id

-- name: refuse_unanswered
-- Raise the same error with two equal rows if the message that a turn answers does not exist, is superseded, or is from
-- before the last reset.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT :session_id, :question, 0, :created_at
FROM (SELECT 1 UNION ALL SELECT 2) AS two_rows
WHERE NOT EXISTS (
    SELECT 1 FROM chat_messages m JOIN chat_sessions s ON s.session_id = m.session_id
    WHERE m.session_id = :session_id AND m.id = :question AND m.superseded_at IS NULL AND m.seq > s.reset_seq
)

-- name: message_columns
-- Included by other statements: the columns that `message_of` reads.
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at, m.author, m.answers, m.ordinal

-- name: marked_columns
-- Included by other statements: the columns that `marked_message_of` reads.
-- include: message_columns
    , m.superseded_at, m.superseded_by

-- name: newest
-- The newest :limit active messages before :before, newest first. The lower bound makes PostgreSQL use the index even
-- without statistics on the length of sessions.
-- include: message_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > 0 AND m.seq < :before AND m.superseded_at IS NULL
ORDER BY m.seq DESC
LIMIT :limit

-- name: newest_of_user
-- The same, if the session belongs to the user. This is a separate statement, because PostgreSQL would plan a statement
-- with an optional user again at each call.
SELECT * FROM (
-- include: newest
) m
WHERE :user_id = (SELECT s.user_id FROM chat_sessions s WHERE s.session_id = :session_id)
ORDER BY seq DESC

-- name: newest_of_history
-- The newest messages as above, including superseded messages with the columns that mark them.
-- include: marked_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > 0 AND m.seq < :before
ORDER BY m.seq DESC
LIMIT :limit

-- name: newest_of_history_of_user
-- The same, if the session belongs to the user.
SELECT * FROM (
-- include: newest_of_history
) m
WHERE :user_id = (SELECT s.user_id FROM chat_sessions s WHERE s.session_id = :session_id)
ORDER BY seq DESC

-- name: recent
-- The rows of a window: after the last reset, the archive and :after, newest first, without system rows. The lower
-- bound is a subquery, and the rows come from one table. So both bounds limit the index scan in every plan of
-- PostgreSQL, and rows outside of them are never read.
SELECT
    m.*, s.reset_seq, s.archived_seq, s.deleted_seq, s.revision, s.created_at,
    (SELECT c.value FROM chat_channel_state c WHERE c.scope = 'threadkeep' AND c.name = 'restored'), s.last_user_seq
FROM (
-- include: message_columns
    FROM chat_messages m
    WHERE m.session_id = :session_id
        AND m.seq > (
            SELECT CASE
                WHEN reset_seq >= archived_seq AND reset_seq >= :after THEN reset_seq
                WHEN archived_seq >= :after THEN archived_seq
                ELSE :after
            END
            FROM chat_sessions
            WHERE session_id = :session_id
        )
        AND m.seq < :before AND m.role IN ('user', 'assistant') AND m.superseded_at IS NULL
    ORDER BY m.seq DESC
    LIMIT :limit
) m
JOIN chat_sessions s ON s.session_id = :session_id
WHERE CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id
ORDER BY m.seq DESC

-- name: newest_user
-- The newest user message between two seq values, both excluded.
-- include: message_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq < :before AND m.role = 'user'
    AND m.superseded_at IS NULL
ORDER BY m.seq DESC
LIMIT 1

-- name: message_with_id
-- include: marked_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.id = :id

-- name: at_places
WITH wanted (seq) AS (
VALUES (:seq)
)
-- include: marked_columns
FROM wanted w JOIN chat_messages m ON m.session_id = :session_id AND m.seq = w.seq
ORDER BY m.seq

-- name: with_ids
WITH wanted (id) AS (
VALUES (:id)
)
-- include: marked_columns
FROM wanted w JOIN chat_messages m ON m.session_id = :session_id AND m.id = w.id
ORDER BY m.seq

-- name: answers_to
-- The complete answers to a question, in order. The condition matches their index.
-- include: marked_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.answers = :question AND m.status = 'complete' AND m.superseded_at IS NULL
ORDER BY m.seq

-- name: answers_to_superseded
-- The same for a superseded question: active and superseded answers among the :reach messages after the question.
-- include: marked_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= CAST(:after AS BIGINT) + :reach
    AND (m.answers = :question OR (m.answers IS NULL AND m.run_id = :run_id AND m.role = 'assistant')) AND m.status = 'complete'
ORDER BY m.seq

-- name: superseding
-- The id of the message that has replaced a superseded message.
SELECT superseded_by FROM chat_messages WHERE session_id = :session_id AND id = :id AND superseded_at IS NOT NULL

-- name: answer_of_run
-- The newest answer of a run, within the :reach messages after its question.
-- include: marked_columns
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= CAST(:after AS BIGINT) + :reach AND m.run_id = :run_id AND m.role = 'assistant'
    AND m.status = 'complete' AND m.answers IS NULL AND m.superseded_at IS NULL
ORDER BY m.seq DESC
LIMIT 1

-- name: session_columns
-- Included by other statements: the columns that `session_of` reads.
SELECT
    session_id, user_id, title, last_message, message_count, last_seq, reset_seq, archived_seq, deleted_seq, retention,
    active, tags, metadata, created_at, updated_at, revision, parent_session_id, parent_seq, agent
FROM chat_sessions

-- name: session
-- include: session_columns
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)

-- name: session_page
-- Included by other statements: one page, newest activity first, after the cursor (:updated_at, :session_id).
(updated_at, session_id) < (:updated_at, :session_id)
    AND (CAST(:active AS BOOLEAN) IS NULL OR active = CAST(:active AS BOOLEAN))
    AND (
        CAST(:pattern AS TEXT) IS NULL
        OR translate(coalesce(title, '') || ' ' || coalesce(last_message, '') || ' ' || session_id, :capitals, :letters) LIKE :pattern ESCAPE '\'
    )
    AND (CAST(:prefix AS TEXT) IS NULL OR substr(session_id, 1, length(CAST(:prefix AS TEXT))) = CAST(:prefix AS TEXT))
    AND (CAST(:tag AS TEXT) IS NULL OR replace(CAST(tags AS TEXT), CAST(:tag AS TEXT), '') <> CAST(tags AS TEXT))
ORDER BY updated_at DESC, session_id DESC
LIMIT :limit

-- name: sessions
-- include: session_columns
WHERE
-- include: session_page

-- name: tagged_sessions
-- The index of sessions with tags has the same condition, so others are not read.
-- include: session_columns
WHERE tags <> '[]' AND
-- include: session_page

-- name: sessions_of_user
-- include: session_columns
WHERE user_id = :user_id AND
-- include: session_page

-- name: set_title
UPDATE chat_sessions SET title = :value WHERE session_id = :session_id

-- name: set_tags
UPDATE chat_sessions SET tags = :value WHERE session_id = :session_id

-- name: set_metadata
UPDATE chat_sessions SET metadata = :value WHERE session_id = :session_id

-- name: own_sessions
-- The conversations that agents store below a session, which are deleted with it.
SELECT session_id FROM chat_sessions WHERE parent_session_id = :session_id AND agent IS NOT NULL

-- name: set_active
UPDATE chat_sessions SET active = :value WHERE session_id = :session_id

-- name: reset
-- Start later windows after the existing messages, which stay.
UPDATE chat_sessions SET reset_seq = last_seq
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)
RETURNING reset_seq

-- name: reset_after_answer
-- If an answer directly follows a reset, and its question is before the reset, move the reset behind the answer.
UPDATE chat_sessions SET reset_seq = last_seq
WHERE session_id = :session_id AND reset_seq >= :question_seq AND reset_seq = :first_seq - 1

-- name: delete_runs
-- Also delete runs without a session that wrote messages of this session (such as runs of an agent with its own
-- conversation), the roots of their trees and their descendants, if these have no session either: all of them contain
-- its messages. Runs that wrote in the parent session of a branch stay.
WITH RECURSIVE gone (run_id) AS (
    SELECT run_id FROM chat_runs WHERE session_id = :session_id
    UNION
    SELECT t.run_id
    FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id JOIN chat_runs r ON r.run_id = m.run_id
    JOIN chat_runs t ON t.run_id IN (r.run_id, r.root_run_id)
    WHERE s.session_id = :session_id AND (s.parent_session_id IS NULL OR m.created_at >= s.created_at)
        AND r.session_id IS NULL AND t.session_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone)

-- name: forget_answered
DELETE FROM chat_answered_messages WHERE session_id = :session_id

-- name: forget_active_session
DELETE FROM chat_active_sessions WHERE session_id = :session_id

-- name: forget_outgoing
DELETE FROM chat_outbox WHERE session_id = :session_id

-- name: forget_channel_session
DELETE FROM chat_channel_sessions WHERE session_id = :session_id

-- name: forget_created_thread
-- A thread that was created in LangGraph's API and has no run yet.
DELETE FROM chat_channel_state WHERE scope = 'langgraph-threads' AND name = :session_id

-- name: lock_session
-- Wait for other transactions on this session, and block new ones until this transaction ends.
UPDATE chat_sessions SET active = active WHERE session_id = :session_id

-- name: changing
-- Return the message of a run if the run is being executed and its message has not deleted the session before.
SELECT r.message_id FROM chat_runs r
WHERE r.run_id = :run_id AND r.status = 'running' AND NOT EXISTS (
    SELECT 1 FROM chat_answered_messages a WHERE a.session_id = :deletion AND a.message_id = r.message_id
)

-- name: note_deletion
-- Record that a message has deleted a session. If two transactions do this at once, the second one inserts nothing.
INSERT INTO chat_answered_messages (
    session_id, message_id, run_id, workflow, status, trigger, created_at, ended_at
)
SELECT CAST(:deletion AS TEXT), r.message_id, r.run_id, r.workflow, 'done', r.trigger, r.created_at, r.heartbeat_at
FROM chat_runs r WHERE r.run_id = :run_id
ON CONFLICT (session_id, message_id) DO NOTHING

-- name: delete_session
DELETE FROM chat_sessions WHERE session_id = :session_id
