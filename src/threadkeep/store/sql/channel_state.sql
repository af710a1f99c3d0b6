-- State of channels.

-- name: value
SELECT value FROM chat_channel_state
WHERE scope = :scope AND name = :name AND (expires_at IS NULL OR expires_at > :now)

-- name: values_of
SELECT name, value FROM chat_channel_state
WHERE scope = :scope AND substr(name, 1, length(:prefix)) = :prefix AND (expires_at IS NULL OR expires_at > :now)
ORDER BY name

-- name: keep
INSERT INTO chat_channel_state (scope, name, value, expires_at) VALUES (:scope, :name, :value, :expires_at)
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at

-- name: keep_first
INSERT INTO chat_channel_state (scope, name, value, expires_at) VALUES (:scope, :name, :value, :expires_at)
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at
WHERE chat_channel_state.expires_at <= :now
RETURNING name

-- name: keep_for_duty
-- Store a value only while the owner has the duty.
INSERT INTO chat_channel_state (scope, name, value)
SELECT :scope, :name, :value FROM chat_duties WHERE duty = :duty AND owner = :owner AND claimed_until > :now
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, expires_at = NULL

-- name: replace
UPDATE chat_channel_state SET value = :value, expires_at = :expires_at
WHERE scope = :scope AND name = :name AND value = :old

-- name: forget
DELETE FROM chat_channel_state WHERE scope = :scope AND name = :name AND value = :value

-- name: forget_expired
-- Delete up to 100 expired values, oldest first. Skip rows that another transaction is storing or deleting.
DELETE FROM chat_channel_state WHERE (scope, name) IN (
    SELECT scope, name FROM chat_channel_state WHERE scope = :scope AND expires_at <= :now ORDER BY expires_at LIMIT 100
-- include: skip_held
)
