-- Statements that supersede messages and branch sessions, for SQLite and PostgreSQL.

-- name: hold
-- Lock the session until the transaction ends.
UPDATE chat_sessions SET active = active WHERE session_id = :session_id RETURNING user_id, title, last_seq, revision

-- name: newest_active
SELECT min(n.seq), max(n.seq) FROM (
    SELECT seq FROM chat_messages
    WHERE session_id = :session_id AND seq > 0 AND superseded_at IS NULL
    ORDER BY seq DESC
    LIMIT :newest
) n

-- name: active_between
SELECT
    m.seq, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id, m.metadata, m.original,
    m.sent_at, m.created_at, m.author, m.answers, m.ordinal
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq >= :first_seq AND m.seq <= :last_seq AND m.superseded_at IS NULL
ORDER BY m.seq

-- name: supersede_between
-- Supersede messages; with a :run_id, only the message :id, the answers to it and the messages of this run. Only the
-- message :id gets :superseded_by as its replacement.
UPDATE chat_messages SET
    superseded_at = :now, superseded_by = CASE WHEN id = :id THEN CAST(:superseded_by AS TEXT) END
WHERE session_id = :session_id AND seq >= :first_seq AND seq <= :last_seq AND superseded_at IS NULL
    AND (CAST(:run_id AS TEXT) IS NULL OR id = :id OR run_id = :run_id OR answers = :id)
RETURNING seq

-- name: superseded_ranges
SELECT min(r.seq), max(r.seq) FROM (
    SELECT seq, seq - row_number() OVER (ORDER BY seq) AS island FROM chat_messages
    WHERE session_id = :session_id AND seq > :after AND seq < :before AND superseded_at IS NOT NULL
) r
GROUP BY r.island
ORDER BY 1

-- name: withdraw_summaries
-- Deactivate summaries of superseded and of later messages. A deactivated summary has its own id in superseded_by.
UPDATE chat_summaries SET superseded_by = id
WHERE session_id = :session_id AND superseded_by IS NULL AND last_seq >= :first_seq
RETURNING id

-- name: parts_of_summary
-- The summaries that were merged into the summary :id.
SELECT id, last_seq FROM chat_summaries WHERE session_id = :session_id AND superseded_by = :id AND id <> :id

-- name: release_summary
-- Make a part of a deactivated summary active again (:by is NULL), or deactivate it too (:by is its own id).
UPDATE chat_summaries SET superseded_by = CAST(:by AS TEXT) WHERE session_id = :session_id AND id = :id

-- name: forget_anchors
-- An anchor is deleted if its window would lose more than half of its messages.
DELETE FROM chat_anchors
WHERE session_id = :session_id AND seq > CAST(:first_seq AS BIGINT) - (CAST(:last_seq AS BIGINT) - :first_seq + 1)

-- name: forget_steps
-- Delete the tool calls of turns whose question or answer is in the range.
DELETE FROM chat_steps
WHERE session_id = :session_id AND (
    (seq >= :first_seq AND seq <= :last_seq)
    OR seq IN (
        SELECT q.seq FROM chat_messages a JOIN chat_messages q ON q.session_id = a.session_id AND q.id = a.answers
        WHERE a.session_id = :session_id AND a.seq >= :first_seq AND a.seq <= :last_seq
    )
)

-- name: vector_models
SELECT DISTINCT model FROM chat_embeddings WHERE session_id = :session_id

-- name: forget_vectors
DELETE FROM chat_embeddings
WHERE session_id = :session_id AND model = :model AND seq >= :first_seq AND seq <= :last_seq

-- name: superseded_users
SELECT seq FROM chat_messages
WHERE session_id = :session_id AND seq >= :first_seq AND seq <= :last_seq AND role = 'user' AND content <> ''
    AND superseded_at IS NOT NULL
ORDER BY seq

-- name: content_at
SELECT content FROM chat_messages WHERE session_id = :session_id AND seq = :at

-- name: first_user
SELECT content FROM chat_messages
WHERE session_id = :session_id AND seq > 0 AND role = 'user' AND content <> '' AND superseded_at IS NULL
ORDER BY seq
LIMIT 1

-- name: newest_active_message
SELECT content FROM chat_messages
WHERE session_id = :session_id AND seq > 0 AND content <> '' AND superseded_at IS NULL
ORDER BY seq DESC
LIMIT 1

-- name: newest_active_user
SELECT seq FROM chat_messages
WHERE session_id = :session_id AND seq > 0 AND role = 'user' AND superseded_at IS NULL
ORDER BY seq DESC
LIMIT 1

-- name: refresh_session
UPDATE chat_sessions SET
    revision = revision + 1, message_count = message_count - :superseded, title = :title, last_message = :last_message,
    last_user_seq = :last_user_seq
WHERE session_id = :session_id

-- name: place_at
SELECT seq, superseded_at FROM chat_messages WHERE session_id = :session_id AND seq = :at

-- name: begin_branch
-- The branch gets the fields of the session; :since is the time when the message at :at was superseded.
INSERT INTO chat_sessions (
    session_id, user_id, message_count, last_seq, last_user_seq, reset_seq, archived_seq, indexed_seq, tags, metadata, retention,
    created_at, updated_at, parent_session_id, parent_seq
)
SELECT
    :branch_id, p.user_id, c.messages, c.messages, c.last_user, c.before_reset, c.archived, c.archived, p.tags, p.metadata,
    p.retention, :now, :now, p.session_id, :at
FROM chat_sessions p CROSS JOIN (
    SELECT
        count(*) AS messages,
        coalesce(max(CASE WHEN n.role = 'user' THEN n.place END), 0) AS last_user,
        coalesce(max(CASE WHEN n.seq <= n.reset_seq THEN n.place END), 0) AS before_reset,
        coalesce(max(CASE WHEN n.seq <= n.archived_seq THEN n.place END), 0) AS archived
    FROM (
        SELECT m.seq, m.role, s.reset_seq, s.archived_seq, row_number() OVER (ORDER BY m.seq) AS place
        FROM chat_sessions s JOIN chat_messages m ON m.session_id = s.session_id
        WHERE s.session_id = :session_id AND m.seq <= :at
            AND (m.superseded_at IS NULL OR m.superseded_at >= :since)
    ) n
) c
WHERE p.session_id = :session_id
ON CONFLICT (session_id) DO NOTHING

-- name: copy_messages
INSERT INTO chat_messages (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
    author, answers, ordinal, told_at
)
SELECT
    :branch_id, row_number() OVER (ORDER BY m.seq), m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated,
    m.run_id, m.metadata, m.original, m.sent_at, m.created_at, m.author, m.answers, m.ordinal, m.told_at
FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq <= :at
    AND (m.superseded_at IS NULL OR m.superseded_at >= :since)
ORDER BY m.seq

-- name: copy_summaries
-- Copy the active summaries that cover only copied messages, with the seq values of the branch.
INSERT INTO chat_summaries (
    session_id, id, first_seq, last_seq, level, text, model, prompt_version, tokens, created_at
)
SELECT :branch_id, c.id, c.ahead + 1, c.upto, c.level, c.text, c.model, c.prompt_version, c.tokens, c.created_at
FROM (
    SELECT
        c.*,
        (
            SELECT count(*) FROM chat_messages m
            WHERE m.session_id = c.session_id AND m.seq < c.first_seq
                AND (m.superseded_at IS NULL OR m.superseded_at >= :since)
        ) AS ahead,
        (
            SELECT count(*) FROM chat_messages m
            WHERE m.session_id = c.session_id AND m.seq <= c.last_seq
                AND (m.superseded_at IS NULL OR m.superseded_at >= :since)
        ) AS upto,
        (
            SELECT count(*) FROM chat_messages m
            WHERE m.session_id = c.session_id AND m.seq >= c.first_seq AND m.seq <= c.last_seq AND m.superseded_at IS NULL
        ) AS active
    FROM chat_sessions s JOIN chat_summaries c ON c.session_id = s.session_id
    WHERE s.session_id = :session_id AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq AND c.last_seq <= :at
) c
WHERE c.upto > c.ahead AND c.active = c.upto - c.ahead

-- name: name_branch
UPDATE chat_sessions SET title = :title, last_message = :last_message WHERE session_id = :session_id
