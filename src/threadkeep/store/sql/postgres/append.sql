-- A group of new turns on PostgreSQL: one statement, so one round trip and no transaction to open and close.

-- name: append
-- Count the sessions up as `reserve` of transcripts.sql does, and insert the messages: `behind` says how many messages
-- of its session in this group follow a message. Another user's session is left out, with its messages. The condition
-- is always true: it shortens the wait for locked rows, for this statement alone. `refused` breaks the key of its own
-- table when an id is that of a deleted message, which is no more new than one that is there; and so does `unanswered`
-- with two rows alike when what a turn answers is not there.
WITH given AS (
    SELECT * FROM json_to_recordset(:messages) AS m (
        session_id TEXT, behind BIGINT, id TEXT, role TEXT, content TEXT, tokens BIGINT, status TEXT,
        confidence DOUBLE PRECISION, escalated BOOLEAN, run_id TEXT, metadata TEXT, original TEXT, sent_at TIMESTAMPTZ,
        created_at TIMESTAMPTZ, answers TEXT
    )
), counted AS (
    INSERT INTO chat_sessions AS s (
        session_id, user_id, title, last_message, message_count, last_seq, last_user_seq, created_at, updated_at
    )
    SELECT g.session_id, g.user_id, g.title, g.last_message, g.added, g.added, g.newest_user, g.now, g.now
    FROM json_to_recordset(:sessions) AS g (
        session_id TEXT, user_id TEXT, title TEXT, last_message TEXT, added BIGINT, newest_user BIGINT, now TIMESTAMPTZ
    )
    WHERE set_config('lock_timeout', :lock_timeout, TRUE) IS NOT NULL
    ON CONFLICT (session_id) DO UPDATE SET
        title = coalesce(s.title, excluded.title),
        last_message = coalesce(excluded.last_message, s.last_message),
        message_count = s.message_count + excluded.message_count,
        last_user_seq = CASE WHEN excluded.last_user_seq > 0 THEN s.last_seq + excluded.last_user_seq ELSE s.last_user_seq END,
        last_seq = s.last_seq + excluded.last_seq,
        updated_at = CASE WHEN excluded.last_seq > 0 AND excluded.updated_at > s.updated_at THEN excluded.updated_at ELSE s.updated_at END
    WHERE excluded.user_id IS NULL OR s.user_id = excluded.user_id
    RETURNING session_id, last_seq, deleted_seq, created_at
), stored AS (
    INSERT INTO chat_messages (
        session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at
    )
    SELECT
        m.session_id, c.last_seq - m.behind, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
        m.metadata::JSONB, m.original::JSON, m.sent_at, m.created_at
    FROM given m JOIN counted c ON c.session_id = m.session_id
), refused AS (
    INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
    SELECT d.session_id, d.id, d.seq, d.created_at
    FROM counted c JOIN given m ON m.session_id = c.session_id CROSS JOIN LATERAL (
        -- One look into the index for each message, whatever the planner knows of the table.
        SELECT * FROM chat_deleted_ids k WHERE k.session_id = m.session_id AND k.id = m.id LIMIT 1
    ) d
    WHERE c.deleted_seq > 0
), unanswered AS (
    INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
    SELECT m.session_id, m.answers, 0, m.created_at
    FROM counted c JOIN given m ON m.session_id = c.session_id LEFT JOIN LATERAL (
        -- Of the same session: what this statement sees of it may be older than its row, which was waited for.
        SELECT TRUE AS is_there
        FROM chat_messages q JOIN chat_sessions s ON s.session_id = q.session_id
        WHERE q.session_id = m.session_id AND q.id = m.answers AND s.created_at = c.created_at
        LIMIT 1
    ) question ON TRUE CROSS JOIN (VALUES (1), (2)) AS two_rows
    WHERE m.answers IS NOT NULL AND question.is_there IS NULL
)
SELECT session_id, last_seq FROM counted
