-- The records of model calls, and the texts that are in no transcript.

-- name: insert_manifest
-- The database numbers the calls of a run.
INSERT INTO chat_manifests (session_id, run_id, call, created_at, manifest)
VALUES (
    :session_id, :run_id,
    (SELECT coalesce(max(call), 0) + 1 FROM chat_manifests WHERE session_id = :session_id AND run_id = :run_id),
    :created_at, :manifest
)

-- name: same_manifest
SELECT call FROM chat_manifests
WHERE session_id = :session_id AND run_id = :run_id AND created_at = :created_at AND CAST(manifest AS TEXT) = :manifest

-- name: fresh_texts
-- Which of some texts are there and were used since :worn.
WITH wanted (digest) AS (
VALUES (:digest)
)
SELECT t.digest
FROM wanted w JOIN chat_context_texts t ON t.session_id = :session_id AND t.digest = w.digest AND t.used_at >= :worn

-- name: use_text
INSERT INTO chat_context_texts (session_id, digest, body, used_at)
VALUES (:session_id, :digest, :body, :now)
ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at
WHERE chat_context_texts.used_at < excluded.used_at

-- name: texts
WITH wanted (digest) AS (
VALUES (:digest)
)
SELECT t.digest, t.body FROM wanted w JOIN chat_context_texts t ON t.session_id = :session_id AND t.digest = w.digest

-- name: of_run
SELECT m.session_id, m.run_id, m.call, m.created_at, m.manifest
FROM chat_manifests m JOIN chat_sessions s ON s.session_id = m.session_id
WHERE m.run_id = :run_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY m.session_id, m.call

-- name: of_session
-- The newest first, from the cursor (:created_at, :run_id, :call) on.
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
