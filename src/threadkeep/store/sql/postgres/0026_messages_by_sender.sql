-- Indexes that find a person's messages in sessions of others, and the answers of the person's deleted runs.

CREATE INDEX idx_chat_messages_author ON chat_messages (author) WHERE role = 'user' AND author IS NOT NULL;
CREATE INDEX idx_chat_messages_sender ON chat_messages ((metadata ->> 'sender_id'))
WHERE role = 'user' AND metadata ->> 'sender_id' IS NOT NULL;
CREATE INDEX idx_chat_answered_messages_user_id ON chat_answered_messages (user_id) WHERE user_id IS NOT NULL;
