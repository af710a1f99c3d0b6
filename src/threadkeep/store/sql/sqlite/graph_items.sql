-- Where the engines' JSON differs. LangGraph's own values are bytes, which SQLite's JSON does not take as they are.

-- name: update_metadata
UPDATE store SET value = :value, updated_at = CURRENT_TIMESTAMP
WHERE prefix = :prefix AND key = :key AND json_extract(CAST(value AS TEXT), '$.version') = :version

-- name: delete_metadata
DELETE FROM store
WHERE prefix = :prefix AND key = :key AND json_extract(CAST(value AS TEXT), '$.version') = :version
