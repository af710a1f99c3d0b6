-- Indexes that find a person's messages in sessions of others, the answers of the person's deleted runs, and the newest
-- runs that ended without an answer.

CREATE INDEX idx_chat_messages_author ON chat_messages (author) WHERE role = 'user' AND author IS NOT NULL;
CREATE INDEX idx_chat_messages_sender ON chat_messages (CAST(metadata ->> 'sender_id' AS TEXT))
WHERE role = 'user' AND metadata ->> 'sender_id' IS NOT NULL;
CREATE INDEX idx_chat_answered_messages_user_id ON chat_answered_messages (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_runs_without_answer ON chat_runs (created_at, run_id)
WHERE status IN ('failed', 'cancelled', 'interrupted');
