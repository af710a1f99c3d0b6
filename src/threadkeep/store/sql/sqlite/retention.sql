-- Merges SQLite's search index, and shrinks the file.

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
