-- Completion of ids in a shell.

-- name: session_ids
-- Session ids that begin with a prefix, newest activity first.
SELECT session_id FROM chat_sessions
WHERE substr(session_id, 1, length(CAST(:beginning AS TEXT))) = CAST(:beginning AS TEXT)
ORDER BY updated_at DESC, session_id DESC
LIMIT 50
