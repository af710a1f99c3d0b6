-- Anchors of windows and active summaries, for the next model call.

-- name: state
-- One row for each active summary, oldest first, or one row without a summary.
SELECT
    coalesce(a.seq, 0), s.reset_seq, s.archived_seq, s.deleted_seq, s.revision, c.session_id, c.first_seq, c.last_seq, c.text,
    c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_sessions s
LEFT JOIN chat_anchors a ON a.session_id = s.session_id AND a.profile = :profile
LEFT JOIN chat_summaries c ON c.session_id = s.session_id AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY c.first_seq

-- name: move_anchor
-- Move the anchor only forward, and at most behind the last message, because the caller may have read a session with
-- this id that was deleted since.
INSERT INTO chat_anchors (session_id, profile, seq)
SELECT s.session_id, :profile, :seq FROM chat_sessions s WHERE s.session_id = :session_id AND :seq <= s.last_seq + 1
    AND (CAST(:revision AS BIGINT) IS NULL OR s.revision = CAST(:revision AS BIGINT))
ON CONFLICT (session_id, profile) DO UPDATE SET seq = excluded.seq WHERE chat_anchors.seq < excluded.seq

-- name: keep_steps
-- Store the tool calls of an answer only if the question exists and is active.
INSERT INTO chat_steps (session_id, author, seq, ordinal, body)
SELECT m.session_id, :author, m.seq, :ordinal, :body FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq = :seq AND m.id = :question_id AND m.superseded_at IS NULL
ON CONFLICT (session_id, author, seq, ordinal) DO UPDATE SET body = excluded.body

-- name: forget_steps
-- Delete the tool calls of all but the agent's newest :turns turns.
DELETE FROM chat_steps
WHERE session_id = :session_id AND author = :author AND seq < (
    SELECT min(newest.seq) FROM (
        SELECT DISTINCT k.seq FROM chat_steps k WHERE k.session_id = :session_id AND k.author = :author
        ORDER BY k.seq DESC
        LIMIT :turns
    ) AS newest
)

-- name: steps
SELECT seq, body FROM chat_steps
WHERE session_id = :session_id AND author = :author AND seq >= :since
ORDER BY seq, ordinal
