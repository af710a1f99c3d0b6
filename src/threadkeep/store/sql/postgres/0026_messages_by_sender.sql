-- Indexes for erasing a person (messages in sessions of others, and records of deleted runs), and for listing runs that
-- ended without an answer. A person's id has at most 512 characters; an index entry of PostgreSQL has at most 2,704 bytes.

CREATE INDEX idx_chat_messages_author ON chat_messages (author) WHERE role = 'user' AND author IS NOT NULL;
CREATE INDEX idx_chat_messages_sender ON chat_messages ((metadata ->> 'sender_id'))
WHERE role = 'user' AND length(metadata ->> 'sender_id') <= 512;
CREATE INDEX idx_chat_answered_messages_user_id ON chat_answered_messages (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_runs_without_answer ON chat_runs (created_at, run_id)
WHERE status IN ('failed', 'cancelled', 'interrupted');
