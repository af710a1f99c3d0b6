-- Checks of the guarantees of transcripts, on SQLite and PostgreSQL.

-- Sessions whose messages have a gap in their seq, or do not end at last_seq. Sessions whose messages are in a graph
-- store are skipped.
-- name: gaps
SELECT s.session_id, s.last_seq - s.deleted_seq AS expected, count(m.seq) AS found
FROM chat_sessions s LEFT JOIN chat_messages m ON m.session_id = s.session_id
WHERE s.graph_version IS NULL
GROUP BY s.session_id, s.last_seq, s.deleted_seq
HAVING count(m.seq) <> s.last_seq - s.deleted_seq OR coalesce(max(m.seq), s.deleted_seq) <> s.last_seq
ORDER BY s.session_id
LIMIT 20
