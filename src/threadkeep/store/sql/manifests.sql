-- Records of model calls, and their texts that are not in a transcript, for sessions and for runs without a session.

-- name: insert_manifest
-- The calls of a run are numbered here; calls stored with the run before its session existed count too.
INSERT INTO chat_manifests (session_id, run_id, call, created_at, manifest)
VALUES (
    :session_id, :run_id,
    (
        SELECT coalesce(max(calls.call), 0) + 1
        FROM (
            SELECT call FROM chat_manifests WHERE session_id = :session_id AND run_id = :run_id
            UNION ALL
            SELECT call FROM chat_run_manifests WHERE run_id = :run_id
        ) AS calls
    ),
    :created_at, :manifest
)

-- name: insert_manifest_of_run
INSERT INTO chat_run_manifests (run_id, call, created_at, manifest)
VALUES (
    :run_id, (SELECT coalesce(max(call), 0) + 1 FROM chat_run_manifests WHERE run_id = :run_id), :created_at, :manifest
)

-- name: noted_then
SELECT manifest FROM chat_manifests WHERE run_id = :run_id AND session_id = :session_id AND created_at = :created_at

-- name: noted_then_of_run
SELECT manifest FROM chat_run_manifests WHERE run_id = :run_id AND created_at = :created_at

-- name: ids_at
-- The ids of a session's messages by seq.
WITH wanted (seq) AS (
VALUES (:seq)
)
SELECT m.seq, m.id FROM wanted w JOIN chat_messages m ON m.session_id = :session_id AND m.seq = w.seq

-- name: fresh_texts
-- The digests of the given texts that exist and were used since :worn.
WITH wanted (digest) AS (
VALUES (:digest)
)
SELECT t.digest
FROM wanted w JOIN chat_context_texts t ON t.session_id = :session_id AND t.digest = w.digest AND t.used_at >= :worn

-- name: fresh_texts_of_run
WITH wanted (digest) AS (
VALUES (:digest)
)
SELECT t.digest
FROM wanted w JOIN chat_run_texts t ON t.run_id = :run_id AND t.digest = w.digest AND t.used_at >= :worn

-- name: use_text
INSERT INTO chat_context_texts (session_id, digest, body, used_at)
VALUES (:session_id, :digest, :body, :now)
ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at
WHERE chat_context_texts.used_at < excluded.used_at

-- name: use_worn_text
-- Store a text like `use_text`, but write to an existing row only if it was not used since :worn.
INSERT INTO chat_context_texts (session_id, digest, body, used_at)
VALUES (:session_id, :digest, :body, :now)
ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at
WHERE chat_context_texts.used_at < :worn

-- name: drop_texts_after_erase
-- A model call that began before an erasure in its session may contain texts of the erased person.
DELETE FROM chat_context_texts WHERE session_id = :session_id AND EXISTS (
    SELECT 1 FROM chat_channel_state e WHERE e.scope = 'emptied' AND e.name = :marker AND e.value >= :begun
)

-- name: use_text_of_run
INSERT INTO chat_run_texts (run_id, digest, body, used_at)
VALUES (:run_id, :digest, :body, :now)
ON CONFLICT (run_id, digest) DO UPDATE SET used_at = excluded.used_at
WHERE chat_run_texts.used_at < excluded.used_at

-- name: texts
-- The texts of a session and of a run.
WITH wanted (digest) AS (
VALUES (:digest)
)
SELECT t.digest, t.body FROM wanted w JOIN chat_context_texts t ON t.session_id = :session_id AND t.digest = w.digest
UNION ALL
SELECT t.digest, t.body FROM wanted w JOIN chat_run_texts t ON t.run_id = :run_id AND t.digest = w.digest

-- name: of_run
SELECT m.session_id, m.run_id, m.call, m.created_at, m.manifest
FROM chat_manifests m JOIN chat_sessions s ON s.session_id = m.session_id
WHERE m.run_id = :run_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
UNION ALL
SELECT NULL, m.run_id, m.call, m.created_at, m.manifest
FROM chat_run_manifests m JOIN chat_runs r ON r.run_id = m.run_id
WHERE m.run_id = :run_id AND (CAST(:user_id AS TEXT) IS NULL OR r.user_id = :user_id)

-- name: of_runs
-- The records of several runs, from both tables.
WITH wanted (run_id) AS (
VALUES (:run_id)
)
SELECT m.session_id, m.run_id, m.call, m.created_at, m.manifest
FROM wanted w JOIN chat_manifests m ON m.run_id = w.run_id
UNION ALL
SELECT NULL, m.run_id, m.call, m.created_at, m.manifest
FROM wanted w JOIN chat_run_manifests m ON m.run_id = w.run_id

-- name: of_session
-- The records of a session before the cursor (:created_at, :run_id, :call), newest first.
SELECT m.session_id, m.run_id, m.call, m.created_at, m.manifest
FROM chat_sessions s JOIN chat_manifests m ON m.session_id = s.session_id
WHERE s.session_id = :session_id
    AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND (m.created_at, m.run_id, m.call) < (:created_at, :run_id, :call)
ORDER BY m.created_at DESC, m.run_id DESC, m.call DESC
LIMIT :limit

-- name: purge_manifests
DELETE FROM chat_manifests
WHERE (session_id, run_id, call) IN (
    SELECT session_id, run_id, call FROM chat_manifests WHERE created_at < :before ORDER BY created_at LIMIT :limit
)

-- name: purge_texts
DELETE FROM chat_context_texts
WHERE (session_id, digest) IN (
    SELECT session_id, digest FROM chat_context_texts WHERE used_at < :before ORDER BY used_at LIMIT :limit
)

-- name: purge_run_manifests
DELETE FROM chat_run_manifests
WHERE (run_id, call) IN (
    SELECT run_id, call FROM chat_run_manifests WHERE created_at < :before ORDER BY created_at LIMIT :limit
)

-- name: purge_run_texts
DELETE FROM chat_run_texts
WHERE (run_id, digest) IN (
    SELECT run_id, digest FROM chat_run_texts WHERE used_at < :before ORDER BY used_at LIMIT :limit
)
