-- The search index on SQLite forgets the beginning of a session; and the file gives back the room.

-- name: forget_texts
INSERT INTO chat_search (chat_search, rowid, content)
SELECT 'delete', d.document, m.content
FROM chat_search_documents d JOIN chat_messages m ON m.session_id = d.session_id AND m.seq = d.seq
WHERE d.session_id = :session_id AND d.seq > :after AND d.seq <= :upto

-- name: forget_documents
DELETE FROM chat_search_documents WHERE session_id = :session_id AND seq > :after AND seq <= :upto

-- name: optimize_search
-- What was forgotten is still in older parts of the index until they are joined.
INSERT INTO chat_search (chat_search) VALUES ('optimize')

-- name: vacuum
VACUUM

-- name: shorten_log
PRAGMA wal_checkpoint(TRUNCATE)
