-- Archiving and deleting the oldest messages of sessions in atomic steps, and deleting finished runs.

-- name: prunable
-- Included by other statements: sessions, each with the times of its first stored and first unarchived message.
SELECT
    s.session_id, s.last_seq, s.last_user_seq, s.archived_seq, s.deleted_seq, s.message_count, s.updated_at, s.retention,
    (SELECT m.created_at FROM chat_messages m WHERE m.session_id = s.session_id AND m.seq > s.deleted_seq ORDER BY m.seq LIMIT 1),
    (SELECT m.created_at FROM chat_messages m WHERE m.session_id = s.session_id AND m.seq > s.archived_seq ORDER BY m.seq LIMIT 1)
FROM chat_sessions s

-- name: sessions
-- include: prunable
WHERE s.session_id > :after
    AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY s.session_id
LIMIT :limit

-- name: sessions_with_own
-- Only sessions with limits of their own; used if there are no general rules.
-- include: prunable
WHERE s.session_id > :after AND s.retention IS NOT NULL
    AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY s.session_id
LIMIT :limit

-- name: session
-- include: prunable
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)

-- name: first_since
-- The first message that was stored at :moment or later.
SELECT seq FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND created_at >= :moment
ORDER BY seq
LIMIT 1

-- name: first_of_newest
-- The active message that is followed by exactly :others active messages.
SELECT seq FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND superseded_at IS NULL
ORDER BY seq DESC
LIMIT 1 OFFSET :others

-- name: extent
SELECT count(*), coalesce(sum(tokens), 0) FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND seq <= :upto

-- name: sizes
SELECT seq, id, length(content), tokens, created_at FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND seq <= :upto
ORDER BY seq

-- name: count_active
SELECT count(*) FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND seq <= :upto AND superseded_at IS NULL

-- name: begin_archiving
-- Lock the session if it is unchanged: the archive still ends at :after, the message at :upto still has the id :id, and
-- no message has arrived since :idle_before, if that is given.
UPDATE chat_sessions SET active = active
WHERE session_id = :session_id AND archived_seq = :after
    AND (CAST(:idle_before AS TIMESTAMPTZ) IS NULL OR updated_at < :idle_before)
    AND EXISTS (SELECT 1 FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :upto AND m.id = :id)

-- name: begin_deleting
UPDATE chat_sessions SET active = active
WHERE session_id = :session_id AND deleted_seq = :after
    AND (CAST(:idle_before AS TIMESTAMPTZ) IS NULL OR updated_at < :idle_before)
    AND EXISTS (SELECT 1 FROM chat_messages m WHERE m.session_id = :session_id AND m.seq = :upto AND m.id = :id)

-- name: begin_deleting_session
UPDATE chat_sessions SET active = active
WHERE session_id = :session_id AND deleted_seq = last_seq AND updated_at < :idle_before

-- name: archive
UPDATE chat_sessions SET
    archived_seq = :upto,
    indexed_seq = CASE WHEN indexed_seq < :upto THEN :upto ELSE indexed_seq END
WHERE session_id = :session_id

-- name: delete
UPDATE chat_sessions SET
    deleted_seq = :upto,
    archived_seq = CASE WHEN archived_seq < :upto THEN :upto ELSE archived_seq END,
    indexed_seq = CASE WHEN indexed_seq < :upto THEN :upto ELSE indexed_seq END,
    message_count = message_count - :active,
    last_message = CASE WHEN message_count = :active THEN NULL ELSE last_message END
WHERE session_id = :session_id

-- name: first_user
SELECT content FROM chat_messages
WHERE session_id = :session_id AND seq > :after AND seq <= :upto AND role = 'user' AND content <> '' AND superseded_at IS NULL
ORDER BY seq
LIMIT 1

-- name: title
SELECT title FROM chat_sessions WHERE session_id = :session_id

-- name: retitle
UPDATE chat_sessions SET title = :title WHERE session_id = :session_id

-- name: remember_ids
-- Remember the ids only of messages that are so new that their platform may send them again.
INSERT INTO chat_deleted_ids (session_id, id, seq, created_at)
SELECT m.session_id, m.id, m.seq, m.created_at FROM chat_messages m
WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND m.created_at >= :remember_since
ON CONFLICT (session_id, id) DO NOTHING

-- name: runs_of_messages
-- Included by other statements: runs that answered the messages, runs that wrote messages before another run answered
-- the question again, and all descendants of these runs that have no session.
WITH RECURSIVE gone (run_id) AS (
    SELECT r.run_id FROM chat_messages m JOIN chat_runs r ON r.session_id = m.session_id AND r.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT j.run_id FROM chat_messages m JOIN chat_run_messages j ON j.session_id = m.session_id AND j.message_id = m.id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
    UNION
    SELECT r.run_id FROM chat_messages m JOIN chat_runs r ON r.run_id = m.run_id AND r.session_id = m.session_id
    WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto AND r.message_id IS NULL
        AND r.parent_run_id IS NULL
    UNION
    SELECT c.run_id FROM gone g JOIN chat_runs c ON c.parent_run_id = g.run_id WHERE c.session_id IS NULL
)

-- name: delete_runs
-- include: runs_of_messages
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM gone)

-- name: forget_answered
-- Delete the records that deleted runs answered these messages.
DELETE FROM chat_answered_messages
WHERE session_id = :session_id AND message_id IN (
    SELECT m.id FROM chat_messages m WHERE m.session_id = :session_id AND m.seq > :after AND m.seq <= :upto
)

-- name: delete_steps
DELETE FROM chat_steps WHERE session_id = :session_id AND seq > :after AND seq <= :upto

-- name: delete_vectors
-- Find the models first, because the index on vectors begins with the model.
WITH RECURSIVE models (model) AS (
    SELECT min(e.model) FROM chat_embeddings e WHERE e.session_id = :session_id
    UNION ALL
    SELECT (SELECT min(e.model) FROM chat_embeddings e WHERE e.session_id = :session_id AND e.model > models.model)
    FROM models WHERE models.model IS NOT NULL
)
DELETE FROM chat_embeddings
WHERE session_id = :session_id AND model IN (SELECT model FROM models WHERE model IS NOT NULL)
    AND seq > :after AND seq <= :upto

-- name: delete_recall_index
DELETE FROM chat_recall_indexes WHERE session_id = :session_id

-- name: delete_manifests
-- Delete the records of model calls that are older than all remaining messages.
DELETE FROM chat_manifests WHERE session_id = :session_id AND created_at <= :manifests_upto

-- name: delete_context_texts
DELETE FROM chat_context_texts WHERE session_id = :session_id AND used_at <= :unused_since

-- name: delete_superseded
-- Delete merged summaries; active ones stay with their range.
DELETE FROM chat_summaries
WHERE session_id = :session_id AND superseded_by IS NOT NULL AND last_seq <= :upto

-- name: delete_messages
DELETE FROM chat_messages WHERE session_id = :session_id AND seq > :after AND seq <= :upto

-- name: forget_ids
DELETE FROM chat_deleted_ids
WHERE (session_id, id) IN (
    SELECT session_id, id FROM chat_deleted_ids WHERE created_at < :before ORDER BY created_at LIMIT :limit
)

-- name: retention
SELECT retention FROM chat_sessions
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)

-- name: set_retention
UPDATE chat_sessions SET retention = :retention
WHERE session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR user_id = :user_id)

-- Expired runs are deleted as whole trees, the root with all its descendants.

-- name: over_for_long
-- Expired trees after the cursor (:created_at, :run_id): their roots (or the oldest run below a deleted root), with
-- the numbers of runs and events. A tree is expired if all its runs have ended before :before; runs that are set aside
-- must have ended before :set_aside_before.
SELECT
    r.root_run_id, r.workflow, r.status, r.created_at, r.run_id, r.ended_at,
    CASE WHEN r.parent_run_id IS NULL THEN 1 ELSE 0 END
    + (SELECT count(*) FROM chat_runs t WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL),
    coalesce((
        SELECT e.last_number FROM chat_run_traces e WHERE e.run_id = r.run_id AND r.parent_run_id IS NULL
    ), 0)
    + (
        SELECT CAST(coalesce(sum(e.last_number), 0) AS BIGINT) FROM chat_runs t JOIN chat_run_traces e ON e.run_id = t.run_id
        WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL
    )
FROM chat_runs r
WHERE (r.created_at, r.run_id) > (:created_at, :run_id)
    AND r.created_at < :before AND r.ended_at < :before AND r.status IN ('done', 'failed', 'cancelled', 'interrupted')
    AND (NOT r.set_aside OR r.ended_at < :set_aside_before)
    AND (r.parent_run_id IS NULL OR NOT EXISTS (
        SELECT 1 FROM chat_runs t
        WHERE t.run_id = r.root_run_id OR (
            t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL AND (t.created_at, t.run_id) < (r.created_at, r.run_id)
        )
    ))
    AND NOT EXISTS (
        SELECT 1 FROM chat_runs t
        WHERE t.root_run_id = r.root_run_id AND t.parent_run_id IS NOT NULL AND (
            t.ended_at IS NULL OR t.ended_at >= :before
            OR t.status NOT IN ('done', 'failed', 'cancelled', 'interrupted')
            OR (t.set_aside AND t.ended_at >= :set_aside_before)
        )
    )
ORDER BY r.created_at, r.run_id
LIMIT :limit

-- name: still_over
-- The given trees that are still expired; a person may have retried a run of the others meanwhile.
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
)
SELECT w.root_run_id FROM wanted w
WHERE NOT EXISTS (
    SELECT 1 FROM chat_runs t
    WHERE (t.run_id = w.root_run_id OR (t.root_run_id = w.root_run_id AND t.parent_run_id IS NOT NULL)) AND (
        t.ended_at IS NULL OR t.ended_at >= :before
        OR t.status NOT IN ('done', 'failed', 'cancelled', 'interrupted')
        OR (t.set_aside AND t.ended_at >= :set_aside_before)
    )
)

-- name: going
-- Included by other statements: the ids of all runs in the trees of the given root runs.
WITH wanted (root_run_id) AS (
VALUES (:root_run_id)
), going (run_id) AS (
    SELECT root_run_id FROM wanted
    UNION ALL
    SELECT c.run_id FROM wanted w JOIN chat_runs c ON c.root_run_id = w.root_run_id AND c.parent_run_id IS NOT NULL
)

-- name: remember
-- Record messages whose run is done or cancelled as answered. A message with a failed run is not recorded, so that it
-- can be sent again.
-- include: going
, answered (message_id, run_id) AS (
    -- SQLite reads the tables of a cross join in their order.
    SELECT r.message_id, r.run_id FROM going g CROSS JOIN chat_runs r
    WHERE r.run_id = g.run_id AND r.message_id IS NOT NULL
    UNION ALL
    SELECT j.message_id, j.run_id FROM going g CROSS JOIN chat_run_messages j WHERE j.run_id = g.run_id
)
INSERT INTO chat_answered_messages (
    session_id, message_id, run_id, workflow, status, user_id, trigger, created_at, ended_at
)
SELECT r.session_id, a.message_id, r.run_id, r.workflow, r.status, r.user_id, r.trigger, r.created_at, r.ended_at
FROM answered a CROSS JOIN chat_runs r
WHERE r.run_id = a.run_id AND r.session_id IS NOT NULL AND r.status IN ('done', 'cancelled')
ON CONFLICT (session_id, message_id) DO UPDATE SET
    run_id = excluded.run_id, workflow = excluded.workflow, status = excluded.status, user_id = excluded.user_id,
    trigger = excluded.trigger, created_at = excluded.created_at, ended_at = excluded.ended_at

-- name: delete_some_events
-- Delete some events of a tree that has many.
DELETE FROM chat_run_events WHERE (run_id, number) IN (
    SELECT e.run_id, e.number FROM (
        SELECT run_id FROM chat_runs WHERE run_id = :root_run_id
        UNION ALL
        SELECT run_id FROM chat_runs WHERE root_run_id = :root_run_id AND parent_run_id IS NOT NULL
    ) t JOIN chat_run_events e ON e.run_id = t.run_id
    LIMIT :limit
)

-- name: delete_trees
-- include: going
DELETE FROM chat_runs WHERE run_id IN (SELECT run_id FROM going)
RETURNING root_run_id
