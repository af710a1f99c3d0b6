-- Statements on LangGraph's table `store` that depend on SQLite's JSON functions. LangGraph stores values as bytes,
-- which these functions do not accept.

-- name: update_metadata
UPDATE store SET value = :value, updated_at = CURRENT_TIMESTAMP
WHERE prefix = :prefix AND key = :key AND json_extract(CAST(value AS TEXT), '$.version') = :version

-- name: delete_metadata
DELETE FROM store
WHERE prefix = :prefix AND key = :key AND json_extract(CAST(value AS TEXT), '$.version') = :version

-- name: refuse_unchanged
-- Raise an error by violating the key with two equal rows, unless the previous statement has changed a row.
INSERT INTO store (prefix, key, value)
SELECT :prefix, :key, '{}' FROM (VALUES (1), (2)) WHERE changes() = 0

-- name: items
WITH wanted (prefix, key) AS (
VALUES (:prefix, :key)
)
SELECT s.prefix, s.key, s.value FROM wanted w JOIN store s ON s.prefix = w.prefix AND s.key = w.key
