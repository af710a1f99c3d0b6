-- Summaries, and claims of processes on the work of writing them.

-- name: active
-- Active summaries: not merged into another, and after the last reset.
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_sessions s JOIN chat_summaries c ON c.session_id = s.session_id
WHERE s.session_id = :session_id
    AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
    AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq
ORDER BY c.first_seq

-- name: all
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_sessions s JOIN chat_summaries c ON c.session_id = s.session_id
WHERE s.session_id = :session_id AND (CAST(:user_id AS TEXT) IS NULL OR s.user_id = :user_id)
ORDER BY c.first_seq, c.level, c.created_at, c.id

-- name: merged
-- The newest merged summaries up to a seq, each with the id of the summary into which it was merged.
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at,
    c.superseded_by
FROM chat_summaries c
WHERE c.session_id = :session_id AND c.superseded_by <> c.id AND c.last_seq <= :upto_seq
ORDER BY c.last_seq DESC, c.level DESC, c.first_seq
LIMIT :limit

-- name: of_messages
-- The summaries made directly from messages in a range, merged or not, except summaries of superseded messages.
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_summaries c
WHERE c.session_id = :session_id AND c.level = 1 AND c.first_seq >= :first_seq AND c.last_seq <= :last_seq
    AND (c.superseded_by IS NULL OR c.superseded_by <> c.id)
ORDER BY c.first_seq
LIMIT :limit

-- name: newest_of_messages
-- The same summaries, newest first.
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at
FROM chat_summaries c
WHERE c.session_id = :session_id AND c.level = 1 AND c.first_seq >= :first_seq AND c.last_seq <= :last_seq
    AND (c.superseded_by IS NULL OR c.superseded_by <> c.id)
ORDER BY c.first_seq DESC
LIMIT :limit

-- name: ranges
SELECT c.id, c.first_seq, c.last_seq
FROM chat_summaries c
WHERE c.session_id = :session_id AND c.superseded_by IS NULL AND c.first_seq > :reset_seq
ORDER BY c.first_seq

-- name: supersede
UPDATE chat_summaries SET superseded_by = :by WHERE session_id = :session_id AND id = :id

-- name: insert_summary
INSERT INTO chat_summaries (
    session_id, id, first_seq, last_seq, level, text, model, prompt_version, tokens, created_at
)
VALUES (
    :session_id, :id, :first_seq, :last_seq, :level, :text, :model, :prompt_version, :tokens, :created_at
)

-- name: for_export
-- Active summaries, each with the number of exported messages in its range, and the ids of the first and last of them.
SELECT
    c.session_id, c.first_seq, c.last_seq, c.text, c.model, c.prompt_version, c.tokens, c.level, c.id, c.created_at,
    (
        SELECT count(*) FROM chat_messages m
        WHERE m.session_id = c.session_id AND m.seq BETWEEN c.first_seq AND c.last_seq
            AND (CAST(:history AS BOOLEAN) OR m.superseded_at IS NULL)
    ),
    (
        SELECT m.id FROM chat_messages m
        WHERE m.session_id = c.session_id AND m.seq BETWEEN c.first_seq AND c.last_seq
            AND (CAST(:history AS BOOLEAN) OR m.superseded_at IS NULL)
        ORDER BY m.seq LIMIT 1
    ),
    (
        SELECT m.id FROM chat_messages m
        WHERE m.session_id = c.session_id AND m.seq BETWEEN c.first_seq AND c.last_seq
            AND (CAST(:history AS BOOLEAN) OR m.superseded_at IS NULL)
        ORDER BY m.seq DESC LIMIT 1
    )
FROM chat_sessions s JOIN chat_summaries c ON c.session_id = s.session_id
WHERE s.session_id = :session_id AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq
ORDER BY c.first_seq

-- name: with_id
SELECT first_seq FROM chat_summaries WHERE session_id = :session_id AND id = :id

-- name: extent
-- The last deleted seq of a session, and the number of messages in a range.
SELECT
    s.deleted_seq,
    (SELECT count(*) FROM chat_messages m WHERE m.session_id = s.session_id AND m.seq BETWEEN :first_seq AND :last_seq)
FROM chat_sessions s
WHERE s.session_id = :session_id

-- name: seq_of
SELECT seq FROM chat_messages WHERE session_id = :session_id AND id = :id

-- name: message_at
SELECT id FROM chat_messages WHERE session_id = :session_id AND seq = :seq

-- name: uncovered
-- The range without an active summary, after the last reset and the archive; superseded messages are not counted.
SELECT b.after_seq, b.last_seq, count(m.seq), coalesce(sum(m.tokens), 0)
FROM (
    SELECT
        c.session_id, c.last_seq,
        CASE
            WHEN c.covered_seq > c.archived_seq AND c.covered_seq > c.reset_seq THEN c.covered_seq
            WHEN c.archived_seq > c.reset_seq THEN c.archived_seq
            ELSE c.reset_seq
        END AS after_seq
    FROM (
        SELECT
            s.session_id, s.last_seq, s.reset_seq, s.archived_seq,
            (
                SELECT coalesce(max(c.last_seq), 0) FROM chat_summaries c
                WHERE c.session_id = s.session_id AND c.superseded_by IS NULL AND c.first_seq > s.reset_seq
            ) AS covered_seq
        FROM chat_sessions s
        WHERE s.session_id = :session_id
    ) c
) b
LEFT JOIN chat_messages m ON m.session_id = b.session_id AND m.seq > b.after_seq AND m.role IN ('user', 'assistant')
    AND m.superseded_at IS NULL
GROUP BY b.after_seq, b.last_seq

-- name: claim
-- The owner can extend its claim; another process can take the claim after it has expired. Times after :beyond were
-- stored by a wrong clock.
INSERT INTO chat_claims (session_id, purpose, owner, claimed_until)
VALUES (:session_id, :purpose, :owner, :until)
ON CONFLICT (session_id, purpose) DO UPDATE SET owner = excluded.owner, claimed_until = excluded.claimed_until
WHERE chat_claims.owner = excluded.owner OR chat_claims.claimed_until <= :now OR chat_claims.claimed_until > :beyond

-- name: release
DELETE FROM chat_claims WHERE session_id = :session_id AND purpose = :purpose AND owner = :owner
