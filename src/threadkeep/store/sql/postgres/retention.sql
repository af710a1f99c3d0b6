-- The search index on PostgreSQL forgets the beginning of a session.

-- name: forget_documents
DELETE FROM chat_search WHERE session_id = :session_id AND seq > :after AND seq <= :upto
