-- Erasure of a person or a session. For a person, `ids` has all ids, and :session_id is NULL. The sessions of an
-- unfinished erasure are noted in chat_channel_state, in the scope :noted, because their rows in chat_sessions are
-- deleted first. A session that another user has created again since then is not erased.

-- name: same_person
-- All ids of the person who has the given id.
SELECT p.person_id FROM chat_persons p
WHERE p.canonical_id = (SELECT o.canonical_id FROM chat_persons o WHERE o.person_id = :id)

-- name: selection
-- Included by other statements: the ids of the person, the sessions to delete entirely, and the runs to delete.
-- SQLite reads the tables of a cross join in their order, so that it finds the rows of large tables by index.
WITH RECURSIVE ids (id) AS (
VALUES (:id)
), own (session_id) AS (
    SELECT s.session_id FROM ids CROSS JOIN chat_sessions s WHERE s.user_id = ids.id
    UNION
    SELECT s.session_id FROM chat_sessions s WHERE s.session_id = CAST(:session_id AS TEXT)
    UNION
    SELECT n.name FROM chat_channel_state n
    WHERE n.scope = CAST(:noted AS TEXT) AND NOT EXISTS (
        SELECT 1 FROM chat_sessions s WHERE s.session_id = n.name AND s.user_id NOT IN (SELECT id FROM ids)
    )
    UNION
    SELECT c.session_id FROM own o CROSS JOIN chat_sessions c
    WHERE c.parent_session_id = o.session_id AND c.agent IS NOT NULL
), gone (run_id) AS (
    SELECT r.run_id FROM own CROSS JOIN chat_runs r WHERE r.session_id = own.session_id
    UNION
    SELECT r.run_id FROM ids CROSS JOIN chat_runs r WHERE r.user_id = ids.id
    UNION
    SELECT c.run_id FROM gone g CROSS JOIN chat_runs c WHERE c.parent_run_id = g.run_id
)

-- name: own_sessions_of
-- include: selection
SELECT session_id FROM own ORDER BY session_id

-- name: note_session
INSERT INTO chat_channel_state (scope, name, value) VALUES (:noted, :session_id, '')
ON CONFLICT (scope, name) DO NOTHING

-- name: forget_notes
DELETE FROM chat_channel_state WHERE scope = :noted

-- name: counts
-- The number of rows in each table that belong to the person or the session.
-- include: selection
, people (person_id) AS (
    SELECT p.person_id FROM chat_persons p WHERE p.person_id IN (SELECT id FROM ids)
), known_groups (group_key, group_id) AS (
    SELECT g.group_key, g.group_id FROM chat_graph_groups g
    WHERE g.group_key IN (SELECT 'user:' || id FROM ids) OR g.group_key IN (SELECT 'session:' || session_id FROM own)
), known_facts (fact_id) AS (
    SELECT f.fact_id FROM chat_facts f
    WHERE f.session_id IN (SELECT session_id FROM own) OR (f.scope = 'user' AND f.owner IN (SELECT id FROM ids))
    UNION
    SELECT e.fact_id FROM chat_fact_evidence e WHERE e.session_id IN (SELECT session_id FROM own)
    UNION
    SELECT e.fact_id FROM chat_fact_evidence e WHERE e.run_id IN (SELECT run_id FROM gone)
)
SELECT 'chat_sessions', count(*) FROM chat_sessions WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_messages', count(*) FROM chat_messages WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_summaries', count(*) FROM chat_summaries WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_embeddings', count(*) FROM chat_embeddings WHERE session_id IN (SELECT session_id FROM own)
UNION ALL
SELECT 'chat_recall_indexes', count(*) FROM chat_recall_indexes WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_manifests', count(*) FROM chat_manifests WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_context_texts', count(*) FROM chat_context_texts WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_steps', count(*) FROM chat_steps WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_anchors', count(*) FROM chat_anchors WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_deleted_ids', count(*) FROM chat_deleted_ids WHERE session_id IN (SELECT session_id FROM own)
UNION ALL SELECT 'chat_runs', count(*) FROM gone
UNION ALL SELECT 'chat_run_events', count(*) FROM chat_run_events WHERE run_id IN (SELECT run_id FROM gone)
UNION ALL SELECT 'chat_run_traces', count(*) FROM chat_run_traces WHERE run_id IN (SELECT run_id FROM gone)
UNION ALL SELECT 'chat_run_tool_calls', count(*) FROM chat_run_tool_calls WHERE run_id IN (SELECT run_id FROM gone)
UNION ALL SELECT 'chat_run_manifests', count(*) FROM chat_run_manifests WHERE run_id IN (SELECT run_id FROM gone)
UNION ALL SELECT 'chat_run_texts', count(*) FROM chat_run_texts WHERE run_id IN (SELECT run_id FROM gone)
UNION ALL
SELECT 'chat_answered_messages', count(*) FROM (
    SELECT a.session_id, a.message_id FROM own CROSS JOIN chat_answered_messages a WHERE a.session_id = own.session_id
    UNION
    SELECT a.session_id, a.message_id FROM ids CROSS JOIN chat_answered_messages a WHERE a.user_id = ids.id
) answered
UNION ALL
SELECT 'chat_active_sessions', count(*) FROM chat_active_sessions
WHERE session_id IN (SELECT session_id FROM own) OR user_id IN (SELECT id FROM ids)
UNION ALL
SELECT 'chat_outbox', count(*) FROM (
    SELECT chat_outbox.number FROM own CROSS JOIN chat_outbox WHERE chat_outbox.session_id = own.session_id
    UNION
    SELECT chat_outbox.number FROM ids CROSS JOIN chat_outbox WHERE chat_outbox.person_id = ids.id
) outgoing
UNION ALL
SELECT 'chat_channel_sessions', count(*) FROM (
    SELECT h.session_id FROM own CROSS JOIN chat_channel_sessions h WHERE h.session_id = own.session_id
    UNION
    SELECT h.session_id FROM ids CROSS JOIN chat_channel_sessions h WHERE h.person_id = ids.id
) reached
UNION ALL
SELECT 'chat_channel_state', count(*) FROM chat_channel_state
WHERE scope IN (SELECT 'chatkit:' || id FROM ids UNION ALL SELECT 'adk:' || id FROM ids
    UNION ALL SELECT 'pydantic-ai:' || id FROM ids)
    OR scope = 'langgraph-threads' AND (name IN (SELECT session_id FROM own) OR name = CAST(:session_id AS TEXT))
UNION ALL SELECT 'chat_graph_turns', count(*) FROM chat_graph_turns WHERE session_id IN (SELECT session_id FROM own)
UNION ALL
SELECT 'chat_graph_deliveries', count(*) FROM (
    SELECT d.number FROM own CROSS JOIN chat_graph_deliveries d WHERE d.session_id = own.session_id
    UNION
    SELECT d.number FROM known_groups g CROSS JOIN chat_graph_deliveries d WHERE d.group_id = g.group_id
) deliveries
UNION ALL SELECT 'chat_graph_groups', count(*) FROM known_groups
UNION ALL SELECT 'chat_fact_learning', count(*) FROM chat_fact_learning WHERE session_id IN (SELECT session_id FROM own)
UNION ALL
SELECT 'chat_fact_proposals', count(*) FROM chat_fact_proposals
WHERE session_id IN (SELECT session_id FROM own) OR person_id IN (SELECT id FROM ids)
    OR (scope = 'user' AND owner IN (SELECT id FROM ids))
UNION ALL SELECT 'chat_facts', count(*) FROM known_facts
UNION ALL SELECT 'chat_fact_evidence', count(*) FROM chat_fact_evidence
WHERE fact_id IN (SELECT fact_id FROM known_facts)
UNION ALL
SELECT 'chat_procedures', count(*) FROM chat_procedures
WHERE session_id IN (SELECT session_id FROM own) OR (scope = 'user' AND owner IN (SELECT id FROM ids))
UNION ALL SELECT 'chat_persons', count(*) FROM people
UNION ALL
SELECT 'chat_person_names', count(*) FROM chat_person_names WHERE person_id IN (SELECT person_id FROM people)
UNION ALL SELECT 'chat_api_keys', count(*) FROM chat_api_keys WHERE user_id IN (SELECT id FROM ids)

-- name: threads
-- The thread ids of LangGraph checkpoints to delete: sessions, runs, and runs that were deleted before.
-- include: selection
SELECT session_id FROM own
UNION SELECT CAST(:session_id AS TEXT) WHERE CAST(:session_id AS TEXT) IS NOT NULL
UNION SELECT run_id FROM gone
UNION SELECT c.run_id FROM chat_run_checkpoints c WHERE NOT EXISTS (SELECT 1 FROM chat_runs r WHERE r.run_id = c.run_id)

-- name: shared_messages
-- The person's messages in sessions of other or no owners, such as group chats: sender or author is one of the ids.
WITH ids (id) AS (
VALUES (:id)
)
SELECT sent.session_id, sent.seq FROM (
    SELECT m.session_id, m.seq FROM ids CROSS JOIN chat_messages m
    WHERE m.author = ids.id AND m.role = 'user' AND m.author IS NOT NULL
    UNION
    SELECT m.session_id, m.seq FROM ids CROSS JOIN chat_messages m
    -- An id of a person has at most 512 characters; a longer value could not be stored in the index.
    WHERE CAST(m.metadata ->> 'sender_id' AS TEXT) = ids.id AND m.role = 'user' AND length(m.metadata ->> 'sender_id') <= 512
        -- A sender is a text or an integer; other values do not name a person.
        AND (CAST(m.metadata -> 'sender_id' AS TEXT) LIKE '"%'
            OR ltrim(CAST(m.metadata -> 'sender_id' AS TEXT), '-0123456789') = '')
) sent
WHERE NOT EXISTS (
    SELECT 1 FROM ids CROSS JOIN chat_sessions s WHERE s.user_id = ids.id AND s.session_id = sent.session_id
)
ORDER BY sent.session_id, sent.seq

-- name: mark_erased
UPDATE chat_messages SET superseded_at = :now
WHERE session_id = :session_id AND seq = :seq AND superseded_at IS NULL

-- name: note_change
-- Change the revision of a session whose messages were superseded before, so that other processes drop their indexes.
UPDATE chat_sessions SET revision = revision + 1 WHERE session_id = :session_id

-- name: note_erase
-- Record the time of the erasure, so that model calls in progress do not store their texts afterwards.
INSERT INTO chat_channel_state (scope, name, value) VALUES ('emptied', :marker, :now)
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value

-- name: forget_old_erases
DELETE FROM chat_channel_state WHERE scope = 'emptied' AND value < :before

-- name: empty_message
-- The row keeps its seq and id, so that later messages keep their seq, and the message is recognised if it is sent
-- again.
UPDATE chat_messages SET
    content = '', tokens = 0, original = NULL, author = NULL, run_id = NULL, sent_at = NULL, confidence = NULL,
    escalated = FALSE, superseded_by = NULL, metadata = :marker
WHERE session_id = :session_id AND seq = :seq

-- name: drop_summaries
-- Delete merged and deactivated summaries too, so that new summaries are made from the remaining messages. Summaries of
-- messages that retention has deleted may have words of anybody.
DELETE FROM chat_summaries WHERE session_id = :session_id AND (
    last_seq >= :seq OR first_seq <= (SELECT s.deleted_seq FROM chat_sessions s WHERE s.session_id = :session_id)
)

-- name: drop_manifests
DELETE FROM chat_manifests WHERE session_id = :session_id

-- name: drop_context_texts
DELETE FROM chat_context_texts WHERE session_id = :session_id

-- name: drop_facts_of_messages
WITH wanted (seq) AS (
VALUES (:seq)
)
DELETE FROM chat_facts WHERE fact_id IN (
    SELECT e.fact_id FROM chat_fact_evidence e
    WHERE e.session_id = :session_id AND e.seq IN (SELECT seq FROM wanted)
    UNION
    SELECT e.fact_id FROM chat_fact_evidence e WHERE e.run_id IN (
        SELECT m.run_id FROM chat_messages m WHERE m.session_id = :session_id AND m.seq IN (SELECT seq FROM wanted)
    )
)

-- name: drop_outgoing_of_message
DELETE FROM chat_outbox WHERE session_id = :session_id AND message_id IN (
    SELECT m.id FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :seq
)

-- name: drop_deliveries_of_message
DELETE FROM chat_graph_deliveries WHERE session_id = :session_id AND message_id IN (
    SELECT m.id FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :seq
)

-- name: forget_answered_user
UPDATE chat_answered_messages SET user_id = NULL WHERE user_id = :id

-- name: delete_runs_of_user
WITH RECURSIVE gone (run_id) AS (
    SELECT run_id FROM chat_runs WHERE user_id = :id
    UNION
    SELECT c.run_id FROM gone g CROSS JOIN chat_runs c WHERE c.parent_run_id = g.run_id
)
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone)

-- name: delete_outgoing
-- Also delete answers that are in no session, such as the answer to a command; their address names the person.
DELETE FROM chat_outbox WHERE number IN (
    SELECT number FROM chat_outbox WHERE person_id = :id
    UNION
    SELECT chat_outbox.number FROM chat_channel_sessions h JOIN chat_outbox ON chat_outbox.session_id = h.session_id
    WHERE h.person_id = :id
)

-- name: delete_channel_sessions
DELETE FROM chat_channel_sessions WHERE person_id = :id

-- name: delete_active_sessions
DELETE FROM chat_active_sessions WHERE user_id = :id

-- name: values_of_person
-- A person's attachments in ChatKit, state in apps of Google ADK, and names of Pydantic AI conversations.
SELECT scope, name, value FROM chat_channel_state
WHERE scope IN ('chatkit:' || :id, 'adk:' || :id, 'pydantic-ai:' || :id)

-- name: steps_of_session
SELECT author, seq, ordinal, body FROM chat_steps WHERE session_id = :session_id ORDER BY author, seq, ordinal

-- name: keys_of_person
SELECT key_id, user_id, name, scope, created_at, expires_at, revoked_at, last_used_at FROM chat_api_keys
WHERE user_id = :id

-- name: delete_values
DELETE FROM chat_channel_state WHERE scope IN ('chatkit:' || :id, 'adk:' || :id, 'pydantic-ai:' || :id)

-- name: delete_created_thread
-- A thread that was created in LangGraph's API and has no run yet; it belongs to no user.
DELETE FROM chat_channel_state WHERE scope = 'langgraph-threads' AND name = :session_id

-- name: drop_facts_of_sessions
-- Delete facts of every scope that have evidence in the sessions.
WITH wanted (session_id) AS (
VALUES (:session_id)
)
DELETE FROM chat_facts WHERE fact_id IN (
    SELECT e.fact_id FROM chat_fact_evidence e WHERE e.session_id IN (SELECT session_id FROM wanted)
)

-- name: retract_lost_facts
-- Episodes whose promoted fact was deleted: drop the unsent ones, and mark the others for deletion in Graphiti.
UPDATE chat_graph_deliveries SET
    content = NULL,
    status = CASE WHEN sent_at IS NULL THEN 'dead' ELSE 'sent' END,
    reason = CASE WHEN sent_at IS NULL THEN 'undone' ELSE 'forgotten' END,
    ended_at = coalesce(sent_at, created_at)
WHERE session_id IS NULL AND coalesce(reason, '') NOT IN ('undone', 'purged', 'forgotten', 'not_deleted')
    AND NOT EXISTS (SELECT 1 FROM chat_facts f WHERE f.fact_id = chat_graph_deliveries.turn)

-- name: episodes_elsewhere
-- Count the messages of the person or of the sessions in Graphiti groups that others also use, because they stay there.
-- Only the deliveries of sessions with such messages are read.
-- include: selection
, involved (session_id) AS (
    SELECT session_id FROM own
    UNION
    SELECT m.session_id FROM ids CROSS JOIN chat_messages m
    WHERE m.author = ids.id AND m.role = 'user' AND m.author IS NOT NULL
    UNION
    SELECT m.session_id FROM ids CROSS JOIN chat_messages m
    WHERE CAST(m.metadata ->> 'sender_id' AS TEXT) = ids.id AND m.role = 'user'
        AND length(m.metadata ->> 'sender_id') <= 512
)
SELECT count(*) FROM involved i CROSS JOIN chat_graph_deliveries d
    JOIN chat_graph_groups g ON g.group_id = d.group_id
    LEFT JOIN chat_messages m ON m.session_id = d.session_id AND m.id = d.message_id
WHERE d.session_id = i.session_id AND d.sent_at IS NOT NULL
    AND g.group_key NOT IN (SELECT 'user:' || id FROM ids)
    AND g.group_key NOT IN (SELECT 'session:' || session_id FROM own)
    AND (d.session_id IN (SELECT session_id FROM own) OR m.role = 'user' AND (
        m.author IN (SELECT id FROM ids) OR CAST(m.metadata ->> 'sender_id' AS TEXT) IN (SELECT id FROM ids)
    ))

-- name: branches
SELECT count(*) FROM chat_sessions WHERE parent_session_id = :session_id AND agent IS NULL

-- name: child_sessions
-- Sessions that child runs of a session's turns have for themselves.
SELECT count(DISTINCT c.session_id)
FROM chat_runs r JOIN chat_runs c ON c.root_run_id = r.run_id AND c.parent_run_id IS NOT NULL
WHERE r.session_id = :session_id AND c.session_id <> :session_id

-- name: retractions
-- Episodes whose deletion Graphiti has not confirmed. The first condition on the status lets a partial index be used.
SELECT
    (SELECT count(*) FROM chat_graph_deliveries
        WHERE status IN ('queued', 'sent') AND status = 'sent' AND reason = 'forgotten')
    + (SELECT count(*) FROM chat_graph_deliveries WHERE status = 'dead' AND reason = 'not_deleted')

-- name: drop_facts_of_runs
-- Execute this before the runs are deleted, because evidence may name only a run.
-- include: selection
DELETE FROM chat_facts WHERE fact_id IN (
    SELECT e.fact_id FROM chat_fact_evidence e WHERE e.run_id IN (SELECT run_id FROM gone)
)

-- name: facts_of_sessions
-- Facts outside the target's scopes that have evidence in its sessions or runs.
-- include: selection
SELECT f.fact_id FROM (
    SELECT fact_id FROM chat_fact_evidence WHERE session_id IN (SELECT session_id FROM own)
    UNION
    SELECT fact_id FROM chat_fact_evidence WHERE run_id IN (SELECT run_id FROM gone)
) found JOIN chat_facts f ON f.fact_id = found.fact_id
WHERE (f.session_id IS NULL OR f.session_id NOT IN (SELECT session_id FROM own))
    AND (f.person_id IS NULL OR f.person_id NOT IN (SELECT id FROM ids))
ORDER BY f.fact_id

-- name: drop_proposals_of_message
DELETE FROM chat_fact_proposals WHERE session_id = :session_id AND seq = :seq

-- name: delete_groups_of_user
DELETE FROM chat_graph_groups WHERE group_key = 'user:' || :id

-- name: delete_group_of_session
DELETE FROM chat_graph_groups WHERE group_key = 'session:' || :session_id

-- name: groups_without_session
-- The session ids of groups that belong to deleted sessions.
SELECT substr(g.group_key, 9) FROM chat_graph_groups g
WHERE g.scope = 'session' AND NOT EXISTS (
    SELECT 1 FROM chat_sessions s WHERE s.session_id = substr(g.group_key, 9)
)

-- name: delete_facts
DELETE FROM chat_facts WHERE scope = 'user' AND owner = :id

-- name: delete_procedures
DELETE FROM chat_procedures WHERE scope = 'user' AND owner = :id

-- name: delete_person
DELETE FROM chat_persons WHERE person_id = :id

-- name: delete_api_keys
DELETE FROM chat_api_keys WHERE user_id = :id

-- name: forget_checkpoints
-- Delete the records that deleted runs may have checkpoints.
DELETE FROM chat_run_checkpoints WHERE NOT EXISTS (
    SELECT 1 FROM chat_runs r WHERE r.run_id = chat_run_checkpoints.run_id
)

-- name: known_users
-- All ids under which rows of persons may be stored.
SELECT user_id FROM chat_sessions WHERE user_id IS NOT NULL
UNION SELECT user_id FROM chat_runs WHERE user_id IS NOT NULL
UNION SELECT user_id FROM chat_answered_messages WHERE user_id IS NOT NULL
UNION SELECT user_id FROM chat_active_sessions
UNION SELECT person_id FROM chat_persons
UNION SELECT owner FROM chat_facts WHERE scope = 'user'
UNION SELECT owner FROM chat_procedures WHERE scope = 'user'
UNION SELECT person_id FROM chat_fact_proposals WHERE person_id IS NOT NULL
UNION SELECT owner FROM chat_fact_proposals WHERE scope = 'user'
UNION SELECT substr(group_key, 6) FROM chat_graph_groups WHERE group_key LIKE 'user:%'
UNION SELECT substr(scope, 9) FROM chat_channel_state WHERE scope LIKE 'chatkit:%'
UNION SELECT substr(scope, 5) FROM chat_channel_state WHERE scope LIKE 'adk:%'
UNION SELECT substr(scope, 13) FROM chat_channel_state WHERE scope LIKE 'pydantic-ai:%'
UNION SELECT user_id FROM chat_api_keys WHERE user_id IS NOT NULL
UNION SELECT author FROM chat_messages WHERE role = 'user' AND author IS NOT NULL
UNION SELECT CAST(metadata ->> 'sender_id' AS TEXT) FROM chat_messages WHERE role = 'user' AND metadata ->> 'sender_id' IS NOT NULL

-- name: known_sessions
SELECT session_id FROM chat_sessions
UNION SELECT session_id FROM chat_runs WHERE session_id IS NOT NULL
UNION SELECT name FROM chat_channel_state WHERE scope = 'langgraph-threads'
