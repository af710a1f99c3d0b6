-- An index for the newest runs of a session: a session may have many.

CREATE INDEX idx_chat_runs_session_id ON chat_runs (session_id, created_at, run_id);
