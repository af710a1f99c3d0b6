-- Learning: messages to learn from, and the facts that were proposed.

-- name: unread_messages
-- The next :limit complete messages of people and agents for a learner. They begin with the messages whose seq is among
-- the last :before ones that the learner has read. A session with the same id may now belong to another user.
SELECT m.seq, m.role, m.content, m.author, m.run_id, m.created_at, m.metadata, l.upto_seq, s.created_at
FROM chat_fact_learning l
    JOIN chat_sessions s ON s.session_id = l.session_id
    JOIN chat_messages m ON m.session_id = l.session_id
WHERE l.session_id = :session_id AND l.learner = :kind AND m.seq > s.reset_seq AND m.seq > l.upto_seq - :before
    AND m.role IN ('user', 'assistant') AND m.status = 'complete' AND m.superseded_at IS NULL
    AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY m.seq
LIMIT :limit

-- name: begin_learning
-- A learner that has never read the session starts with the last :reach messages. This position is stored before the
-- messages are read, so that a learner that fails for a while begins there again.
INSERT INTO chat_fact_learning (session_id, learner, upto_seq)
SELECT s.session_id, :kind, CASE WHEN s.last_seq > :reach THEN s.last_seq - :reach ELSE 0 END
FROM chat_sessions s
WHERE s.session_id = :session_id AND s.agent IS NULL
ON CONFLICT DO NOTHING

-- name: note_read
-- Store the position; return a row only if no other process has moved it meanwhile.
INSERT INTO chat_fact_learning (session_id, learner, upto_seq) VALUES (:session_id, :kind, :upto_seq)
ON CONFLICT (session_id, learner) DO UPDATE SET upto_seq = excluded.upto_seq
WHERE chat_fact_learning.upto_seq = :before_seq
RETURNING upto_seq

-- name: add_proposal
-- Add a proposal only while its message is active, unless an equal one is rejected, undone, of the same message, or open
-- and the newest one of its key: a value that is stated again after another one is proposed again. A message that is
-- read late is no proposal if the valid value comes from a newer message of another session. It is late if its session
-- has a newer question; the newest question always counts, because clocks may go back.
INSERT INTO chat_fact_proposals (
    proposal_id, scope, owner, session_id, person_id, seq, run_id, key, value, kind, promoted, confidence, learner, status,
    created_at, updated_at
)
SELECT
    CAST(:proposal_id AS TEXT), CAST(:scope AS TEXT), CAST(:owner AS TEXT), CAST(:session_id AS TEXT),
    CAST(:person_id AS TEXT), CAST(:seq AS BIGINT), CAST(:run_id AS TEXT), CAST(:key AS TEXT), CAST(:value AS TEXT),
    CAST(:kind AS TEXT), CAST(:promoted AS TEXT), CAST(:confidence AS DOUBLE PRECISION), CAST(:learner AS TEXT), 'open',
    :now, :now
WHERE NOT EXISTS (
    SELECT 1 FROM chat_fact_proposals o
    WHERE o.scope = :scope AND o.owner = :owner AND o.key = :key AND o.value = :value
        AND (o.status IN ('rejected', 'undone') AND o.promoted IS NULL OR o.session_id = :session_id AND o.seq = :seq)
)
    AND NOT EXISTS (
        SELECT 1 FROM chat_fact_proposals o
        WHERE o.scope = :scope AND o.owner = :owner AND o.key = :key AND o.value = :value
            AND o.status = 'open' AND o.promoted IS NULL
            AND NOT EXISTS (
                SELECT 1 FROM chat_fact_proposals n
                WHERE n.scope = o.scope AND n.owner = o.owner AND n.key = o.key AND n.value <> o.value
                    AND n.status IN ('open', 'accepted') AND n.proposal_id > o.proposal_id
            )
    )
    AND EXISTS (
        SELECT 1 FROM chat_messages m
        WHERE m.session_id = :session_id AND m.seq = :seq AND m.superseded_at IS NULL
            AND NOT (
                EXISTS (
                    SELECT 1 FROM chat_messages l
                    WHERE l.session_id = m.session_id AND l.seq > m.seq AND l.role = 'user'
                )
                AND EXISTS (
                    SELECT 1 FROM chat_facts f
                        JOIN chat_fact_evidence e ON e.fact_id = f.fact_id
                        JOIN chat_messages n ON n.session_id = e.session_id AND n.seq = e.seq
                    WHERE f.scope = :scope AND f.owner = :owner AND f.key = :key AND f.value <> :value
                        AND f.valid_to IS NULL AND n.session_id <> m.session_id AND n.created_at > m.created_at
                )
            )
    )

-- name: proposal_columns
-- Included by other statements.
SELECT
    p.proposal_id, p.scope, p.owner, p.session_id, p.seq, p.run_id, p.key, p.value, p.kind, p.promoted, p.confidence,
    p.learner, p.status, p.fact_id, p.created_at, p.updated_at, p.decided_by
FROM chat_fact_proposals p

-- name: proposal
-- include: proposal_columns
WHERE p.proposal_id = :proposal_id

-- name: proposals
-- Most recently changed first, after the cursor (:updated_at, :proposal_id).
-- include: proposal_columns
WHERE (p.updated_at, p.proposal_id) < (:updated_at, :proposal_id)
    AND (CAST(:status AS TEXT) IS NULL OR p.status = :status)
    AND (CAST(:session_id AS TEXT) IS NULL OR p.session_id = :session_id)
    AND (
        CAST(:owner AS TEXT) IS NULL
        OR p.scope = :scope
        AND p.owner IN (
-- include: owners
        )
    )
    AND (
        CAST(:user_id AS TEXT) IS NULL
        OR p.person_id IN (
            SELECT q.person_id FROM chat_persons g JOIN chat_persons q ON q.canonical_id = g.canonical_id
            WHERE g.person_id = :user_id
        )
        OR p.scope = 'session' AND p.session_id IN (SELECT s.session_id FROM chat_sessions s WHERE s.user_id = :user_id)
    )
ORDER BY p.updated_at DESC, p.proposal_id DESC
LIMIT :limit

-- name: open_proposals_of
SELECT proposal_id FROM chat_fact_proposals
WHERE session_id = :session_id AND status = 'open' AND confidence >= :confidence
    AND (promoted IS NOT NULL) = (:kind = 'directives')
ORDER BY seq, proposal_id

-- name: decide_proposal
UPDATE chat_fact_proposals SET status = :status, fact_id = coalesce(:fact_id, fact_id), decided_by = :by, updated_at = :now
WHERE proposal_id = :proposal_id AND status = :before

-- name: is_said
-- Return a row if a message exists and is active.
SELECT 1 FROM chat_messages WHERE session_id = :session_id AND seq = :seq AND superseded_at IS NULL

-- name: known_keys
SELECT DISTINCT f.key FROM chat_facts f
WHERE f.scope = :scope AND f.valid_to IS NULL
    AND f.owner IN (
-- include: owners
    )
ORDER BY f.key
LIMIT 200
