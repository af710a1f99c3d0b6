-- Deliveries of messages to Graphiti groups. Confirmed deliveries stay in the table. Conditions name both open
-- statuses, so that statements use the index of open deliveries and do not read the confirmed ones.

-- name: due_groups
-- Groups that have open deliveries, whose next attempt is due, and that no process owns at the moment. Times after
-- :beyond were stored by a wrong clock.
SELECT g.group_id
FROM (SELECT DISTINCT group_id FROM chat_graph_deliveries WHERE status IN ('queued', 'sent')) d
    JOIN chat_graph_groups g ON g.group_id = d.group_id
WHERE (g.next_try_at <= :now OR g.next_try_at > :beyond)
    AND (g.owner IS NULL OR g.owned_until < :now OR g.owned_until > :beyond)
ORDER BY g.next_try_at
LIMIT :limit

-- name: claim
UPDATE chat_graph_groups SET owner = :owner, owned_until = :until
WHERE group_id = :group_id AND (next_try_at <= :now OR next_try_at > :beyond)
    AND (owner IS NULL OR owned_until < :now OR owned_until > :beyond)
RETURNING failures, seen_at

-- name: renew
UPDATE chat_graph_groups SET owned_until = :until
WHERE group_id = :group_id AND owner = :owner AND owned_until > :now

-- name: release
UPDATE chat_graph_groups SET owner = NULL, owned_until = NULL, next_try_at = :at, failures = :failures, error = :error
WHERE group_id = :group_id AND owner = :owner

-- name: wake
UPDATE chat_graph_groups SET next_try_at = :now
WHERE owner IS NULL AND next_try_at > :now AND (CAST(:group_id AS TEXT) IS NULL OR group_id = :group_id)

-- name: unconfirmed
-- Messages that Graphiti has accepted but does not show yet, and sent episodes of forgotten facts.
SELECT number, name, said_at, attempts, sent_at, coalesce(reason, '') = 'forgotten' FROM chat_graph_deliveries
WHERE group_id = :group_id AND status IN ('queued', 'sent') AND status = 'sent'
ORDER BY number

-- name: waiting
-- Current messages are sent before older ones. Messages that may not be sent now stay, and do not delay later ones. The
-- content of a deleted fact or of a superseded message is NULL.
SELECT
    d.number, d.name, d.said_at, d.attempts, d.role, d.scope,
    coalesce(
        CASE WHEN d.session_id IS NOT NULL OR EXISTS (SELECT 1 FROM chat_facts f WHERE f.fact_id = d.turn) THEN d.content END,
        CASE WHEN m.superseded_at IS NULL THEN m.content END
    ),
    m.author, d.session_id, d.backfill, s.user_id
FROM chat_graph_deliveries d
    LEFT JOIN chat_messages m ON m.session_id = d.session_id AND m.id = d.message_id
    LEFT JOIN chat_sessions s ON s.session_id = d.session_id
WHERE d.group_id = :group_id AND d.status IN ('queued', 'sent') AND d.status = 'queued'
    AND EXISTS (SELECT 1 FROM chat_graph_trust t WHERE t.workspace = coalesce(d.workspace, ''))
    AND EXISTS (
        SELECT 1 FROM chat_graph_grants c
        WHERE c.endpoint = :endpoint AND c.version = :version
            AND c.data_classes LIKE '% ' || CASE
                WHEN d.session_id IS NULL THEN 'promoted_facts'
                WHEN d.role = 'system' THEN 'system_messages'
                WHEN d.backfill THEN 'backfill'
                ELSE 'chat_text'
            END || ' %'
    )
ORDER BY d.backfill, d.number
LIMIT :limit

-- name: mark_sent
-- The owner of the group marks messages before it sends them, and only with consent. If the process dies, messages
-- marked as sent are looked up in Graphiti before they are sent again.
UPDATE chat_graph_deliveries SET status = 'sent', attempts = attempts + 1, sent_at = :now
WHERE number = :number AND status = 'queued'
    AND EXISTS (
        SELECT 1 FROM chat_graph_groups g
        WHERE g.group_id = chat_graph_deliveries.group_id AND g.owner = :owner AND g.owned_until > :now
    )
    AND EXISTS (
        SELECT 1 FROM chat_graph_grants
        WHERE endpoint = :endpoint AND version = :version AND data_classes LIKE :data_class
    )
    AND EXISTS (SELECT 1 FROM chat_graph_trust t WHERE t.workspace = coalesce(chat_graph_deliveries.workspace, ''))
    AND (
        NOT backfill
        OR :most > (
            SELECT count(*) FROM chat_graph_deliveries b
            WHERE b.backfill AND b.sent_at > :since
                AND (
                    b.workspace = chat_graph_deliveries.workspace
                    OR (b.workspace IS NULL AND chat_graph_deliveries.workspace IS NULL)
                )
        )
    )
RETURNING number

-- name: confirm
UPDATE chat_graph_deliveries SET status = 'confirmed', content = NULL, ended_at = :now
WHERE number = :number AND status IN ('queued', 'sent') AND coalesce(reason, '') <> 'forgotten'

-- name: note_seen
UPDATE chat_graph_groups SET seen_at = :now WHERE group_id = :group_id

-- name: take_back
-- Take back the attempt too, because Graphiti did not get the message.
UPDATE chat_graph_deliveries SET status = 'queued', attempts = attempts - 1, sent_at = NULL
WHERE number = :number AND status = 'sent'

-- name: try_again
-- Graphiti rejected the message, possibly only for now.
UPDATE chat_graph_deliveries SET status = 'queued', sent_at = NULL WHERE number = :number AND status = 'sent'

-- name: repeat
-- Graphiti accepted the message but never stored it.
UPDATE chat_graph_deliveries SET status = 'queued', repeats = repeats + 1
WHERE number = :number AND status = 'sent' AND coalesce(reason, '') <> 'forgotten'

-- name: give_up
UPDATE chat_graph_deliveries SET status = 'dead', reason = :reason, ended_at = :now
WHERE number = :number AND status IN ('queued', 'sent')

-- name: give_up_open
UPDATE chat_graph_deliveries SET status = 'dead', ended_at = :now,
    reason = CASE WHEN reason = 'forgotten' AND :reason <> 'purged' THEN 'not_deleted' ELSE :reason END,
    content = CASE WHEN CAST(:reason AS TEXT) = 'purged' THEN NULL ELSE content END
WHERE status IN ('queued', 'sent') AND (CAST(:group_id AS TEXT) IS NULL OR group_id = :group_id)
    AND (status = 'queued' OR NOT CAST(:queued_only AS BOOLEAN))

-- name: accepted
-- Messages that Graphiti has accepted but does not show yet, also if consent was withdrawn shortly after they were sent.
SELECT name FROM chat_graph_deliveries
WHERE group_id = :group_id
    AND (status = 'sent' OR (status = 'dead' AND reason = 'consent_withdrawn' AND sent_at > :since))

-- name: purge_dead
UPDATE chat_graph_deliveries SET reason = 'purged', content = NULL
WHERE group_id = :group_id AND status = 'dead' AND reason NOT IN ('dropped', 'undone')

-- name: episode_of
-- The delivery of a promoted fact, by the name of its episode.
SELECT number, group_id, status, reason FROM chat_graph_deliveries WHERE name = :name

-- name: progress
-- The number of messages that Graphiti has accepted but does not show yet, and the time when it last showed a message.
SELECT
    (SELECT count(*) FROM chat_graph_deliveries WHERE status IN ('queued', 'sent') AND status = 'sent'),
    (SELECT max(seen_at) FROM chat_graph_groups WHERE seen_at <= :beyond)

-- name: newer_episodes
-- The number of a group's sent messages that are as new as :said_at or newer.
SELECT count(*) FROM chat_graph_deliveries
WHERE group_id = :group_id AND status IN ('sent', 'confirmed') AND said_at >= :said_at

-- name: retry
-- A message that Graphiti may have is looked up there before it is sent again.
UPDATE chat_graph_deliveries SET
    status = CASE WHEN sent_at IS NULL OR reason LIKE 'refused%' THEN 'queued' ELSE 'sent' END,
    reason = CASE WHEN reason = 'not_deleted' THEN 'forgotten' END, attempts = 0, ended_at = NULL
WHERE status = 'dead' AND number = coalesce(CAST(:number AS BIGINT), number)
    AND (reason NOT IN ('dropped', 'purged', 'undone') OR number = CAST(:number AS BIGINT))

-- name: drop
-- The row stays, so that a backfill does not add the message again.
UPDATE chat_graph_deliveries SET status = 'dead', reason = 'dropped', content = NULL, ended_at = :now
WHERE status IN ('queued', 'dead') AND coalesce(reason, '') <> 'dropped'
    AND (CAST(:number AS BIGINT) IS NULL OR number = :number)
    AND (CAST(:status AS TEXT) IS NULL OR status = :status)

-- name: entries
SELECT
    number, group_id, scope, session_id, message_id, name, role, status, reason, attempts, repeats, created_at, sent_at,
    ended_at
FROM chat_graph_deliveries
WHERE number > :after AND (CAST(:status AS TEXT) IS NULL OR status = :status)
ORDER BY number
LIMIT :limit

-- name: counts
SELECT status, coalesce(reason, ''), count(*), sum(repeats) FROM chat_graph_deliveries GROUP BY status, reason

-- name: unmade
SELECT count(*) FROM chat_graph_turns

-- name: troubles
-- Errors of groups that still have messages to deliver.
SELECT g.error, count(*) FROM chat_graph_groups g
WHERE g.error IS NOT NULL AND EXISTS (
    SELECT 1 FROM chat_graph_deliveries d WHERE d.group_id = g.group_id AND d.status IN ('queued', 'sent')
)
GROUP BY g.error
ORDER BY g.error

-- name: open_of_groups
-- The numbers of a group's open messages: queued ones, and sent ones.
SELECT
    coalesce(sum(CASE WHEN status = 'queued' THEN 1 ELSE 0 END), 0),
    coalesce(sum(CASE WHEN status = 'sent' THEN 1 ELSE 0 END), 0)
FROM chat_graph_deliveries
WHERE group_id = :group_id AND status IN ('queued', 'sent')

-- name: groups_of_scope
-- The groups of an owner (for a person, of up to `:limit` ids), with the numbers of their queued and sent messages. The
-- group is NULL if the owner has none yet.
SELECT
    o.owner,
    g.group_id,
    count(CASE d.status WHEN 'queued' THEN 1 END),
    count(CASE d.status WHEN 'sent' THEN 1 END)
FROM (
    SELECT CAST(:owner AS TEXT) AS owner
    UNION
    SELECT p.person_id FROM chat_persons c JOIN chat_persons p ON p.canonical_id = c.canonical_id
    WHERE c.person_id = :owner AND CAST(:scope AS TEXT) = 'user'
) o
    LEFT JOIN chat_graph_groups g ON g.group_key = CAST(:scope AS TEXT) || ':' || o.owner
    LEFT JOIN chat_graph_deliveries d ON d.group_id = g.group_id AND d.status IN ('queued', 'sent')
GROUP BY o.owner, g.group_id
ORDER BY CASE WHEN o.owner = :owner THEN 0 ELSE 1 END, o.owner
LIMIT :limit

-- name: dead_of_groups
-- The number of messages of each group that failed for good, without those that were dropped, undone or deleted.
SELECT group_id, count(*) FROM chat_graph_deliveries
WHERE status = 'dead' AND reason NOT IN ('dropped', 'purged', 'undone', 'gone', 'not_deleted')
GROUP BY group_id

-- name: group_with_id
SELECT group_key FROM chat_graph_groups WHERE group_id = :group_id
