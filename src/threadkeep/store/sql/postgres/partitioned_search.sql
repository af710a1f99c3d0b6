-- The statements for a PostgreSQL search index that is partitioned by session; session and seq identify the rows.

-- name: add_text
-- A row may be left from a deleted session with the same id; it is replaced.
INSERT INTO chat_search (session_id, seq, document, terms)
SELECT CAST(:session_id AS TEXT), r.seq, r.document, r.terms
FROM json_to_recordset(:rows) AS r (seq BIGINT, document BIGINT, terms SMALLINT[])
ON CONFLICT (session_id, seq) DO UPDATE SET document = excluded.document, terms = excluded.terms

-- name: forget_range
DELETE FROM chat_search WHERE session_id = :session_id AND seq > :after AND seq <= :upto

-- name: found
SELECT f.session_id, f.seq, f.document FROM chat_search f WHERE f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_user
SELECT f.session_id, f.seq, f.document
FROM chat_sessions s JOIN chat_search f ON f.session_id = s.session_id
WHERE s.user_id = :user_id AND f.terms @> CAST(:terms AS SMALLINT[])

-- name: found_of_session
SELECT f.session_id, f.seq, f.document
FROM chat_sessions s JOIN chat_search f ON f.session_id = s.session_id
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND f.seq > :after AND f.terms @> CAST(:terms AS SMALLINT[])
