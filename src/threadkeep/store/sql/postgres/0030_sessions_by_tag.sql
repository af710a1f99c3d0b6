-- An index for the list of sessions with a tag. Few sessions have tags, so it is small.

CREATE INDEX idx_chat_sessions_tagged ON chat_sessions (updated_at, session_id) WHERE tags <> '[]';
