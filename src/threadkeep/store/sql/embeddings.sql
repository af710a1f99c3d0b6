-- Vectors of messages by model.

-- name: of_session
SELECT seq, vector FROM chat_embeddings
WHERE session_id = :session_id AND model = :model AND seq > :after_seq
ORDER BY seq

-- name: message_at
SELECT id FROM chat_messages WHERE session_id = :session_id AND seq = :seq

-- name: insert_vector
-- Insert a vector only if its message exists and is active.
INSERT INTO chat_embeddings (session_id, model, seq, vector)
SELECT m.session_id, :model, m.seq, :vector FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq = :seq AND m.superseded_at IS NULL
ON CONFLICT (session_id, model, seq) DO UPDATE SET vector = excluded.vector
