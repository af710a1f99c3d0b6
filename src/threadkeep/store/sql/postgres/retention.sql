-- The search index on PostgreSQL forgets the beginning of a session.

-- name: hold
-- Also against those who only keep the session from being deleted while they add to it: vectors of messages, say.
SELECT 1 FROM chat_sessions WHERE session_id = :session_id FOR UPDATE

-- name: forget_texts
DELETE FROM chat_search f USING chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND f.document = m.document

-- name: hold_runs
-- What goes with messages, in one order everywhere, so that nobody waits for anybody's rows in a circle.
WITH RECURSIVE gone (run_id) AS (
    SELECT r.run_id FROM chat_messages m JOIN chat_runs r ON r.session_id = m.session_id AND r.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT j.run_id FROM chat_messages m JOIN chat_run_messages j ON j.session_id = m.session_id AND j.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)
SELECT 1 FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone) ORDER BY run_id FOR UPDATE
