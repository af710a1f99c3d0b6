-- Statements on LangGraph's table `store` that depend on PostgreSQL's JSON and locks.

-- name: lock_conversation
-- An advisory lock, because there may be no row to lock yet.
SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))

-- name: update_metadata
-- If the metadata have another version, fail by inserting two equal rows, which violates the key.
WITH changed AS (
    UPDATE store SET value = :value, updated_at = CURRENT_TIMESTAMP
    WHERE prefix = :prefix AND key = :key AND (value ->> 'version')::BIGINT = :version
    RETURNING 1
)
INSERT INTO store (prefix, key, value)
SELECT :prefix, :key, '{}' FROM generate_series(1, 2) WHERE NOT EXISTS (SELECT FROM changed)

-- name: delete_metadata
WITH changed AS (
    DELETE FROM store WHERE prefix = :prefix AND key = :key AND (value ->> 'version')::BIGINT = :version RETURNING 1
)
INSERT INTO store (prefix, key, value)
SELECT :prefix, :key, '{}' FROM generate_series(1, 2) WHERE NOT EXISTS (SELECT FROM changed)

-- name: items
-- The value of a row is NULL if its :mark, the row version that the caller has cached, is still current.
WITH wanted (prefix, key, mark) AS (
VALUES (:prefix, :key, :mark)
)
SELECT f.prefix, f.key, CASE WHEN f.mark = f.known THEN NULL ELSE f.value END, f.mark
FROM (
    SELECT s.prefix, s.key, s.value, concat_ws(' ', s.ctid, s.xmin, s.updated_at) AS mark, w.mark AS known
    FROM wanted w JOIN store s ON s.prefix = w.prefix AND s.key = w.key
) f

-- name: put_items
-- include: put_items
RETURNING prefix, key, concat_ws(' ', ctid, xmin, updated_at)
