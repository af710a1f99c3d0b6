-- Episodes: a view of stored turns and the runs that answered them.

-- name: newest_messages
-- The last :reach active messages of people and agents of the newest sessions: of one session, or of the sessions that
-- a person has under any id. Messages before a reset are left out. A question has one row for each agent whose tool
-- calls are stored.
SELECT
    m.session_id, m.seq, m.role, m.content, m.status, m.metadata, m.run_id, m.created_at, r.workflow, r.status, r.error,
    k.body
FROM (
    SELECT s.session_id, CASE WHEN s.reset_seq > s.last_seq - :reach THEN s.reset_seq ELSE s.last_seq - :reach END AS after_seq
    FROM chat_sessions s
    WHERE s.agent IS NULL
        AND (
            (:scope = 'session' AND s.session_id = :owner)
            OR (
                :scope = 'user'
                AND s.user_id IN (
                    SELECT CAST(:owner AS TEXT)
                    UNION
                    SELECT p.person_id FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
                    WHERE g.person_id = :owner
                )
            )
        )
    ORDER BY s.updated_at DESC, s.session_id
    LIMIT :sessions
) AS newest
    JOIN chat_messages m ON m.session_id = newest.session_id AND m.seq > newest.after_seq
    LEFT JOIN chat_runs r ON r.run_id = m.run_id
    LEFT JOIN chat_steps k ON k.session_id = m.session_id AND k.seq = m.seq
WHERE m.role <> 'system' AND m.superseded_at IS NULL
ORDER BY m.session_id, m.seq, k.ordinal, k.author
