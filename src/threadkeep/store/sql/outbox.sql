-- The outbox: messages to send, most of them answers of runs.

-- name: add
INSERT INTO chat_outbox (channel, session_id, message_id, status, content, address, next_try_at, created_at)
VALUES (:channel, :session_id, :message_id, :status, :content, :address, :first_try_at, :now)
ON CONFLICT (session_id, channel, message_id) DO NOTHING
RETURNING number

-- name: hear
-- Store the address of a person's new message as the current address of the session.
INSERT INTO chat_channel_sessions AS s (session_id, channel, address, heard_at)
VALUES (:session_id, :channel, :address, :now)
ON CONFLICT (session_id) DO UPDATE SET
    channel = excluded.channel, address = excluded.address, heard_at = excluded.heard_at

-- name: answer
UPDATE chat_outbox SET
    status = 'ready', content = :content, next_try_at = CASE WHEN next_try_at > :now THEN next_try_at ELSE :now END
WHERE session_id = :session_id AND channel = :channel AND message_id = :message_id AND status = 'waiting'
RETURNING number, address

-- name: let_go
UPDATE chat_outbox SET address = :address WHERE number = :number

-- name: waits
SELECT 1 FROM chat_outbox
WHERE session_id = :session_id AND channel = :channel AND message_id = :message_id AND status = 'waiting'

-- name: run_of
-- The run that a message began or joined. For a deleted run, the record that it answered the message is used.
SELECT run_id FROM chat_runs WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_run_messages WHERE session_id = :session_id AND message_id = :message_id
UNION ALL
SELECT run_id FROM chat_answered_messages WHERE session_id = :session_id AND message_id = :message_id
LIMIT 1

-- name: own
-- Set the owner only if the bot has written all messages of the session and this channel knows its person.
UPDATE chat_sessions SET user_id = :user_id
WHERE session_id = :session_id AND user_id IS NULL AND last_user_seq = 0 AND parent_session_id IS NULL
    AND graph_version IS NULL AND deleted_seq = 0 AND archived_seq = 0 AND EXISTS (
        SELECT 1 FROM chat_channel_sessions c
        WHERE c.session_id = chat_sessions.session_id AND c.channel = :channel
    ) AND NOT EXISTS (
        SELECT 1 FROM chat_messages m WHERE m.session_id = chat_sessions.session_id AND m.role = 'user'
    )

-- name: recipient
SELECT channel, address FROM chat_channel_sessions WHERE session_id = :session_id

-- name: make_ready
-- Mark the answers of runs that have ended or wait for a person as ready, in one session or in all. `next_try_at` may
-- be later than now, because the platform may fetch the answer before the first attempt to send it.
UPDATE chat_outbox SET
    status = 'ready', partial = NULL, next_try_at = CASE WHEN next_try_at > :now THEN next_try_at ELSE :now END
WHERE status = 'waiting' AND (CAST(:session_id AS TEXT) IS NULL OR session_id = :session_id) AND (
    EXISTS (
        SELECT 1 FROM chat_runs r
        WHERE r.session_id = chat_outbox.session_id AND r.message_id = chat_outbox.message_id
            AND r.status NOT IN ('queued', 'running')
    ) OR EXISTS (
        SELECT 1 FROM chat_run_messages m JOIN chat_runs r ON r.run_id = m.run_id
        WHERE m.session_id = chat_outbox.session_id AND m.message_id = chat_outbox.message_id
            AND r.status NOT IN ('queued', 'running')
    ) OR EXISTS (
        SELECT 1 FROM chat_answered_messages a
        WHERE a.session_id = chat_outbox.session_id AND a.message_id = chat_outbox.message_id
    )
)
RETURNING number, address

-- name: unasked
-- Included by other statements: waiting answers whose run was never created, because a process died.
WHERE status = 'waiting' AND created_at < :before
    AND NOT EXISTS (
        SELECT 1 FROM chat_runs r WHERE r.session_id = chat_outbox.session_id AND r.message_id = chat_outbox.message_id
    ) AND NOT EXISTS (
        SELECT 1 FROM chat_run_messages m
        WHERE m.session_id = chat_outbox.session_id AND m.message_id = chat_outbox.message_id
    ) AND NOT EXISTS (
        SELECT 1 FROM chat_answered_messages a
        WHERE a.session_id = chat_outbox.session_id AND a.message_id = chat_outbox.message_id
    )

-- name: left
SELECT number, channel, address FROM chat_outbox
-- include: unasked
ORDER BY number

-- name: end_without_run
UPDATE chat_outbox SET status = 'nothing', error = 'NoRun', address = NULL, ended_at = :now
-- include: unasked
    AND number <= :upto

-- name: sendable
-- Included by other statements: ready messages that no process is sending and that are the first of their session.
-- Times after :beyond were stored by a wrong clock, and are ignored. Messages of another channel do not count, because
-- that bot may have been removed.
status = 'ready' AND (next_try_at <= :now OR next_try_at > :beyond)
    AND (owner IS NULL OR owned_until < :now OR owned_until > :beyond)
    AND NOT EXISTS (
        SELECT 1 FROM chat_outbox b
        WHERE b.session_id = chat_outbox.session_id AND b.channel = chat_outbox.channel AND b.status = 'ready'
            AND b.number < chat_outbox.number
    )

-- name: due
SELECT number FROM chat_outbox WHERE channel = :channel AND
-- include: sendable
ORDER BY next_try_at, number
LIMIT :limit

-- name: claim
-- A message whose claim has expired becomes uncertain: its owner may have sent a part without recording this.
UPDATE chat_outbox SET
    uncertain = uncertain OR owner IS NOT NULL, owner = :owner, owned_until = :until, tries = tries + 1,
    created_at = CASE WHEN created_at > :beyond THEN :now ELSE created_at END
WHERE number = :number AND
-- include: sendable
RETURNING
    number, channel, session_id, message_id, status, content, address, parts_sent, tries, uncertain, error, next_try_at,
    created_at

-- name: find
SELECT
    number, channel, session_id, message_id, status, content, address, parts_sent, tries, uncertain, error, next_try_at,
    created_at, partial
FROM chat_outbox
WHERE channel = :channel AND (
    number = CAST(:number AS BIGINT) OR (session_id = CAST(:session_id AS TEXT) AND message_id = CAST(:message_id AS TEXT))
)

-- name: note_partial
UPDATE chat_outbox SET partial = :partial WHERE number = :number AND status = 'waiting'

-- name: end_fetched
-- The platform fetched the whole answer. The text stays, because the platform may fetch it again.
UPDATE chat_outbox SET status = 'delivered', address = NULL, ended_at = :now
WHERE number = :number AND status = 'ready' AND owner IS NULL AND parts_sent = 0

-- name: note_fetched
-- The platform fetched the first part; the other parts will be sent. `partial` says that the first part was fetched.
UPDATE chat_outbox SET parts_sent = 1, partial = 'fetched', next_try_at = :now
WHERE number = :number AND status = 'ready' AND owner IS NULL AND parts_sent = 0

-- name: note_part
UPDATE chat_outbox SET parts_sent = :parts, owned_until = :until
WHERE number = :number AND owner = :owner AND status = 'ready'

-- name: move
UPDATE chat_outbox SET address = :address WHERE number = :number AND owner = :owner AND status = 'ready'

-- name: postpone
UPDATE chat_outbox SET
    owner = NULL, owned_until = NULL, next_try_at = :at, error = :error,
    uncertain = uncertain OR CAST(:uncertain AS BOOLEAN)
WHERE number = :number AND owner = :owner AND status = 'ready'

-- name: fail
-- A failed message keeps its text and address, so that a person can retry it.
UPDATE chat_outbox SET status = 'failed', owner = NULL, owned_until = NULL, error = :error, ended_at = :now
WHERE number = :number AND owner = :owner AND status = 'ready'

-- name: sent
SELECT
    number, channel, session_id, message_id, status, content, address, parts_sent, tries, uncertain, error, next_try_at,
    created_at
FROM chat_outbox
WHERE session_id = :session_id AND channel = :channel AND (parts_sent > 0 OR tries > 0)
    AND status IN ('ready', 'delivered')
ORDER BY number DESC
LIMIT :limit

-- name: fail_sent
-- Mark a message as failed that the platform had accepted before. The ids of its parts depend on created_at, and the
-- platform refuses ids that it has accepted before, so a retry needs new ones.
UPDATE chat_outbox SET
    status = 'failed', owner = NULL, owned_until = NULL, error = :error, parts_sent = :parts, address = :address,
    created_at = :now, ended_at = :now
WHERE number = :number AND status IN ('ready', 'delivered')

-- name: end
UPDATE chat_outbox SET
    status = :status, owner = NULL, owned_until = NULL, error = NULL, content = NULL, address = NULL, ended_at = :now
WHERE number = :number AND owner = :owner AND status = 'ready'

-- name: retry
UPDATE chat_outbox SET status = 'ready', tries = 0, error = NULL, next_try_at = :now, ended_at = NULL
WHERE number = :number AND status = 'failed'

-- name: drop
UPDATE chat_outbox SET
    status = 'dropped', owner = NULL, owned_until = NULL, content = NULL, partial = NULL, address = NULL, ended_at = :now
WHERE number = :number AND status IN ('waiting', 'ready', 'failed')

-- name: entries
SELECT
    number, channel, session_id, message_id, status, content, address, parts_sent, tries, uncertain, error, next_try_at,
    created_at
FROM chat_outbox
WHERE number > :after AND (CAST(:status AS TEXT) IS NULL OR status = :status)
ORDER BY number
LIMIT :limit

-- name: counts
SELECT channel, status, count(*) FROM chat_outbox GROUP BY channel, status ORDER BY channel, status

-- name: open_counts
-- Count only open messages, which have an index of their own; the table may have many ended messages.
SELECT channel, status, count(*) FROM chat_outbox WHERE status IN ('waiting', 'ready', 'failed') GROUP BY channel, status

-- name: times
SELECT channel, min(oldest), max(heard) FROM (
    SELECT channel, created_at AS oldest, NULL AS heard FROM chat_outbox WHERE status IN ('waiting', 'ready', 'failed')
    UNION ALL
    SELECT channel, NULL, heard_at FROM chat_channel_sessions
) both_tables
GROUP BY channel

-- name: remove_ended
DELETE FROM chat_outbox WHERE status IN ('delivered', 'dropped', 'nothing') AND ended_at < :before
RETURNING session_id

-- name: forget_deletions
-- The records of deletions whose message is not repeated any more.
DELETE FROM chat_answered_messages WHERE workflow = 'session-delete' AND ended_at < :before
