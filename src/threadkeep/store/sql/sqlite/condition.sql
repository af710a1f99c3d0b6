-- The condition of a SQLite database.

-- name: engine
SELECT 'version', sqlite_version()
UNION ALL SELECT 'journal_mode', journal_mode FROM pragma_journal_mode
UNION ALL SELECT 'synchronous', CASE synchronous WHEN 0 THEN 'off' WHEN 1 THEN 'normal' WHEN 2 THEN 'full' ELSE 'extra' END
FROM pragma_synchronous

-- name: room
SELECT f.freelist_count * s.page_size, c.page_count * s.page_size
FROM pragma_freelist_count f, pragma_page_count c, pragma_page_size s

-- name: totals
SELECT count(*), coalesce(sum(message_count), 0), coalesce(sum(last_seq - indexed_seq), 0) FROM chat_sessions
