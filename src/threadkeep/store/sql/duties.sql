-- Duties: tasks for all sessions, each done by one process at a time.

-- name: taken
-- Return a row if :owner cannot claim the duty now. Times after :beyond were stored by a wrong clock.
SELECT 1 FROM chat_duties
WHERE duty = :duty
    AND (coalesce(owner, '') <> :owner OR claimed_until <= :now)
    AND (claimed_until > :now AND claimed_until <= :beyond OR done_at > :due AND done_at <= :beyond)

-- name: claim
-- The owner can extend its claim. Another process can claim an expired duty, unless it was done since :due.
INSERT INTO chat_duties (duty, owner, claimed_until) VALUES (:duty, :owner, :until)
ON CONFLICT (duty) DO UPDATE SET owner = excluded.owner, claimed_until = excluded.claimed_until
WHERE (chat_duties.owner = excluded.owner AND chat_duties.claimed_until > :now)
    OR (
        (chat_duties.claimed_until <= :now OR chat_duties.claimed_until > :beyond)
        AND (chat_duties.done_at IS NULL OR chat_duties.done_at <= :due OR chat_duties.done_at > :beyond)
    )
RETURNING duty

-- name: release
UPDATE chat_duties SET owner = NULL, claimed_until = :now WHERE duty = :duty AND owner = :owner

-- name: done
UPDATE chat_duties SET owner = NULL, claimed_until = :now, done_at = :now WHERE duty = :duty AND owner = :owner
