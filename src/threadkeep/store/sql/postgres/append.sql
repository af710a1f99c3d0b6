-- Stores a group of new turns on PostgreSQL with one statement, so with one round trip and no explicit transaction.

-- name: append
-- Update the sessions like `reserve` of transcripts.sql, and insert the messages: `behind` is the number of later
-- messages of the same session in this group. Another user's session is skipped with its messages. The condition with
-- `set_config` is always true: it shortens the wait for locked rows, for this statement only. `refused` raises an error
-- by violating the key of chat_deleted_ids if an id belongs to a deleted message. `unanswered` violates the key if the
-- message that a turn answers does not exist, is superseded, or is from before the last reset.
WITH given AS (
    SELECT * FROM json_to_recordset(:messages) AS m (
        session_id TEXT, behind BIGINT, id TEXT, role TEXT, content TEXT, tokens BIGINT, status TEXT,
        confidence DOUBLE PRECISION, escalated BOOLEAN, run_id TEXT, metadata TEXT, original TEXT, sent_at TIMESTAMPTZ,
        created_at TIMESTAMPTZ, author TEXT, answers TEXT, ordinal BIGINT, told_at TIMESTAMPTZ, question TEXT
    )
), counted AS (
    INSERT INTO chat_sessions AS s (
        session_id, user_id, title, last_message, message_count, last_seq, last_user_seq, created_at, updated_at,
        parent_session_id, agent
    )
    SELECT
        g.session_id, g.user_id, g.title, g.last_message, g.added, g.added, g.newest_user, g.now, g.now,
        g.parent_session_id, g.agent
    FROM json_to_recordset(:sessions) AS g (
        session_id TEXT, user_id TEXT, title TEXT, last_message TEXT, added BIGINT, newest_user BIGINT, now TIMESTAMPTZ,
        parent_session_id TEXT, agent TEXT
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
    RETURNING session_id, last_seq, reset_seq, deleted_seq, created_at, revision
), stored AS (
    INSERT INTO chat_messages (
        session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at,
        author, answers, ordinal, told_at
    )
    SELECT
        m.session_id, c.last_seq - m.behind, m.id, m.role, m.content, m.tokens, m.status, m.confidence, m.escalated, m.run_id,
        m.metadata::JSONB, m.original::JSON, m.sent_at, m.created_at, m.author, m.answers, m.ordinal, m.told_at
    FROM given m JOIN counted c ON c.session_id = m.session_id
), refused AS (
    INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
    SELECT d.session_id, d.id, d.seq, d.created_at
    FROM counted c JOIN given m ON m.session_id = c.session_id CROSS JOIN LATERAL (
        -- LIMIT makes this one index lookup per message, whatever the planner's statistics say.
        SELECT * FROM chat_deleted_ids k WHERE k.session_id = m.session_id AND k.id = m.id LIMIT 1
    ) d
    WHERE c.deleted_seq > 0
), unanswered AS (
    INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
    SELECT m.session_id, m.question, 0, m.created_at
    FROM counted c JOIN given m ON m.session_id = c.session_id LEFT JOIN LATERAL (
        -- Only if the row is unchanged: the snapshot of this statement may be older than the row whose lock it waited
        -- for.
        SELECT TRUE AS is_there
        FROM chat_messages q JOIN chat_sessions s ON s.session_id = q.session_id
        WHERE q.session_id = m.session_id AND q.id = m.question AND q.superseded_at IS NULL AND q.seq > c.reset_seq
            AND s.created_at = c.created_at AND s.revision = c.revision
        LIMIT 1
    ) found ON TRUE CROSS JOIN (VALUES (1), (2)) AS two_rows
    WHERE m.question IS NOT NULL AND found.is_there IS NULL
)
SELECT session_id, last_seq FROM counted

-- name: append_turns
-- A continuation of the same statement for deliveries to Graphiti: one row for each turn with a complete answer, only
-- with consent (like `add_graph_turn`).
, delivered AS (
    INSERT INTO chat_graph_turns (session_id, first_seq, last_seq, workspace, backfill, created_at)
    SELECT t.session_id, c.last_seq - t.first_behind, c.last_seq - t.last_behind, t.workspace, FALSE, t.now
    FROM json_to_recordset(:turns) AS t (
        session_id TEXT, first_behind BIGINT, last_behind BIGINT, workspace TEXT, endpoint TEXT, version BIGINT,
        now TIMESTAMPTZ
    ) JOIN counted c ON c.session_id = t.session_id
    WHERE EXISTS (
            SELECT 1 FROM chat_graph_grants g
            WHERE g.endpoint = t.endpoint AND g.version = t.version AND g.data_classes LIKE '% chat_text %'
        )
        AND EXISTS (SELECT 1 FROM chat_graph_trust w WHERE w.workspace = coalesce(t.workspace, ''))
)
