-- Conversations in the table `store` of LangGraph's own stores, on SQLite and PostgreSQL. The prefix of a row is its
-- namespace, as labels joined by full stops.

-- name: conversations
SELECT key, value FROM store
WHERE prefix = :prefix AND key > :after AND key LIKE :pattern ESCAPE '\'
ORDER BY key
LIMIT :limit

-- name: keys
SELECT key FROM store WHERE prefix = :prefix AND key LIKE :pattern ESCAPE '\'

-- name: insert_metadata
-- This fails if the conversation already has metadata.
INSERT INTO store (prefix, key, value) VALUES (:prefix, :key, :value)

-- name: put_items
INSERT INTO store (prefix, key, value)
VALUES (:prefix, :key, :value)
ON CONFLICT (prefix, key) DO UPDATE SET
    value = excluded.value, updated_at = CURRENT_TIMESTAMP, expires_at = NULL, ttl_minutes = NULL

-- name: delete_items
WITH unwanted (prefix, key) AS (
VALUES (:prefix, :key)
)
DELETE FROM store WHERE (prefix, key) IN (SELECT prefix, key FROM unwanted)
