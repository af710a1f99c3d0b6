-- API keys of the HTTP service.

-- name: all
SELECT key_id, name, digest, scope, user_id, created_at, expires_at, revoked_at, last_used_at FROM chat_api_keys
ORDER BY created_at, key_id

-- name: add
INSERT INTO chat_api_keys (key_id, name, digest, scope, user_id, created_at, expires_at)
VALUES (:key_id, :name, :digest, :scope, :user_id, :now, :expires_at)

-- name: active
-- The valid keys of a name. No replaced key ends later than the newest key, which comes first. Clocks may differ, so
-- `created_at` does not tell which key is the newest.
SELECT scope, user_id, expires_at FROM chat_api_keys
WHERE name = :name AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)
ORDER BY expires_at IS NULL DESC, expires_at DESC

-- name: expire
UPDATE chat_api_keys SET expires_at = :expires_at
WHERE name = :name AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :expires_at)

-- name: revoke
UPDATE chat_api_keys SET revoked_at = :now WHERE name = :name AND revoked_at IS NULL

-- name: note_use
UPDATE chat_api_keys SET last_used_at = :used_at
WHERE key_id = :key_id AND (last_used_at IS NULL OR last_used_at < :used_at)
