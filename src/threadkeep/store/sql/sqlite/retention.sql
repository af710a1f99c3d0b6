-- Removes old messages from SQLite's search index, and shrinks the file.

-- name: forget_range
INSERT INTO chat_search (chat_search, rowid, content)
SELECT 'delete', m.document, m.content
FROM chat_messages m JOIN chat_search_docsize d ON d.id = m.document
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto

-- name: optimize_search
-- Removed texts stay in older segments of the index until the segments are merged.
INSERT INTO chat_search (chat_search) VALUES ('optimize')

-- name: merge_search
-- The same in steps. Pass a negative number of pages first, then positive numbers, until a step changes nothing.
INSERT INTO chat_search (chat_search, rank) VALUES ('merge', :pages)

-- name: search_pages
SELECT count(*) FROM chat_search_data

-- name: total_changes
SELECT total_changes()

-- name: vacuum
VACUUM

-- name: shorten_log
PRAGMA wal_checkpoint(TRUNCATE)
