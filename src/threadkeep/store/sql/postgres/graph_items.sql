-- Statements that depend on the engine's JSON and locks.

-- name: lock_conversation
-- An advisory lock, because there may be no row to lock yet.
SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))

-- name: update_metadata
UPDATE store SET value = :value, updated_at = CURRENT_TIMESTAMP
WHERE prefix = :prefix AND key = :key AND (value ->> 'version')::BIGINT = :version

-- name: delete_metadata
DELETE FROM store WHERE prefix = :prefix AND key = :key AND (value ->> 'version')::BIGINT = :version
