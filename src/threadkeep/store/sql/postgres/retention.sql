-- The search index on PostgreSQL forgets the beginning of a session.

-- name: hold
-- Also against those who only keep the session from being deleted while they add to it: vectors of messages, say.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id FOR UPDATE

-- name: forget_documents
DELETE FROM chat_search WHERE session_id = :session_id AND seq > :after AND seq <= :upto
