-- Where windows begin and what stands for older messages, for the next model call.

-- name: state
-- One row for each summary that counts, oldest first, and one without a summary where there is none.
SELECT
    coalesce(a.seq, 0), s.reset_seq, s.archived_seq, s.deleted_seq, c.session_id, c.first_seq, c.last_seq, c.text, c.model,
    c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_sessions s
LEFT JOIN chat_anchors a ON a.session_id = s.session_id AND a.profile = :profile
LEFT JOIN chat_summaries c ON c.session_id = s.session_id AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY c.first_seq

-- name: move_anchor
-- Forward only, and not past what is there: it may have been meant for a session of this name that was deleted since.
INSERT INTO chat_anchors (session_id, profile, seq)
SELECT s.session_id, :profile, :seq FROM chat_sessions s WHERE s.session_id = :session_id AND :seq <= s.last_seq + 1
ON CONFLICT (session_id, profile) DO UPDATE SET seq = excluded.seq WHERE chat_anchors.seq < excluded.seq
