-- Stored turns whose messages will be sent to Graphiti.

-- name: add_graph_turn
-- Queue a turn in the transaction that stores it, but only with consent. The statement checks the consent, because
-- another process may just have withdrawn it.
INSERT INTO chat_graph_turns (session_id, first_seq, last_seq, workspace, backfill, created_at)
SELECT
    CAST(:session_id AS TEXT), CAST(:first_seq AS BIGINT), CAST(:last_seq AS BIGINT), CAST(:workspace AS TEXT), FALSE, :now
WHERE EXISTS (
        SELECT 1 FROM chat_graph_grants
        WHERE endpoint = :endpoint AND version = :version AND data_classes LIKE '% chat_text %'
    )
    AND EXISTS (SELECT 1 FROM chat_graph_trust t WHERE t.workspace = coalesce(CAST(:workspace AS TEXT), ''))

-- name: oldest_turns
SELECT t.number, t.session_id, t.first_seq, t.last_seq, t.workspace, t.backfill, s.user_id, s.agent
FROM chat_graph_turns t JOIN chat_sessions s ON s.session_id = t.session_id
ORDER BY t.number
LIMIT :limit

-- name: remove_turn
DELETE FROM chat_graph_turns WHERE number = :number

-- name: turn_messages
-- The active messages in a seq range: a turn, perhaps with messages before it, one of which may be its question.
SELECT
    seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at, author,
    answers, ordinal
FROM chat_messages
WHERE session_id = :session_id AND seq BETWEEN :first_seq AND :last_seq AND superseded_at IS NULL
ORDER BY seq

-- name: answer_number
-- The number of complete answers to a question up to a seq.
SELECT count(*) FROM chat_messages
WHERE session_id = :session_id AND answers = :question AND role = 'assistant' AND status = 'complete' AND seq <= :seq

-- name: place_of
SELECT seq FROM chat_messages WHERE session_id = :session_id AND id = :message_id AND superseded_at IS NULL

-- name: canonical_id
SELECT canonical_id FROM chat_persons WHERE person_id = :person_id

-- name: find_group
SELECT group_id FROM chat_graph_groups WHERE group_key = :group_key

-- name: add_group
INSERT INTO chat_graph_groups (group_key, group_id, scope, next_try_at) VALUES (:group_key, :group_id, :scope, :now)
ON CONFLICT DO NOTHING
RETURNING group_id

-- name: add_delivery
INSERT INTO chat_graph_deliveries (
    group_id, scope, workspace, turn, name, session_id, message_id, role, content, bytes, backfill, said_at, status,
    created_at
)
VALUES (
    :group_id, :scope, :workspace, :turn, :name, :session_id, :message_id, :role, :content, :bytes, :backfill, :said_at,
    'queued', :now
)
ON CONFLICT (group_id, name) DO NOTHING

-- name: revive
-- Queue a dead delivery of a fact again. If Graphiti may have it, it is looked up there first.
UPDATE chat_graph_deliveries SET
    status = CASE WHEN sent_at IS NULL OR reason LIKE 'refused%' OR reason = 'purged' THEN 'queued' ELSE 'sent' END,
    content = :content, reason = NULL, attempts = 0, ended_at = NULL
WHERE group_id = :group_id AND name = :name AND status = 'dead'

-- name: queue_size
SELECT count(*), coalesce(sum(bytes), 0) FROM chat_graph_deliveries
WHERE status IN ('queued', 'sent') AND status = 'queued'

-- name: least_urgent
-- The turn to drop first: the oldest queued turn of the least urgent kind. Backfill is least urgent, then sessions,
-- because their messages are available anyway. Turns whose question was sent already come last.
WITH oldest AS (
    SELECT group_id, turn, backfill, CASE scope WHEN 'session' THEN 0 WHEN 'workspace' THEN 1 ELSE 2 END AS urgency, number
    FROM chat_graph_deliveries
    WHERE status IN ('queued', 'sent') AND status = 'queued'
    ORDER BY backfill DESC, CASE scope WHEN 'session' THEN 0 WHEN 'workspace' THEN 1 ELSE 2 END, number
    LIMIT 50
)
SELECT o.group_id, o.turn FROM oldest o
ORDER BY
    EXISTS (
        SELECT 1 FROM chat_graph_deliveries q
        WHERE q.group_id = o.group_id AND q.name = 'threadkeep.turn.' || o.turn || '.user' AND q.status IN ('sent', 'confirmed')
    ),
    o.backfill DESC, o.urgency, o.number
LIMIT 1

-- name: bury_turn
UPDATE chat_graph_deliveries SET status = 'dead', reason = :reason, ended_at = :now
WHERE group_id = :group_id AND turn = :turn AND status IN ('queued', 'sent') AND status = 'queued'

-- name: session_to_backfill
SELECT user_id, agent FROM chat_sessions WHERE session_id = :session_id

-- name: sessions_to_backfill
-- Sessions of people with a complete answer that was never queued.
SELECT s.session_id FROM chat_sessions s
WHERE s.agent IS NULL AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id) AND EXISTS (
    SELECT 1 FROM chat_messages m
    WHERE m.session_id = s.session_id AND m.role = 'assistant' AND m.status = 'complete' AND m.superseded_at IS NULL
        AND NOT EXISTS (
            SELECT 1 FROM chat_graph_deliveries d WHERE d.session_id = m.session_id AND d.message_id = m.id
        )
        AND NOT EXISTS (
            SELECT 1 FROM chat_graph_turns t
            WHERE t.session_id = m.session_id AND m.seq BETWEEN t.first_seq AND t.last_seq
        )
)
ORDER BY s.created_at, s.session_id
LIMIT :limit

-- name: answers_to_backfill
-- The seq of each complete answer that was never queued, oldest first.
SELECT m.seq FROM chat_messages m
WHERE m.session_id = :session_id AND m.role = 'assistant' AND m.status = 'complete' AND m.superseded_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM chat_graph_deliveries d WHERE d.session_id = m.session_id AND d.message_id = m.id
    )
    AND NOT EXISTS (
        SELECT 1 FROM chat_graph_turns t WHERE t.session_id = m.session_id AND m.seq BETWEEN t.first_seq AND t.last_seq
    )
ORDER BY m.seq
LIMIT :limit

-- name: add_backfill
INSERT INTO chat_graph_turns (session_id, first_seq, last_seq, workspace, backfill, created_at)
VALUES (:session_id, :seq, :seq, :workspace, TRUE, :now)
