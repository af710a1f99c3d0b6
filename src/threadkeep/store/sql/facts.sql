-- Facts: values of keys in scopes, each with its period of validity.

-- name: owners
-- Included by other statements: the given owner and, if it is a person, all other ids of the person.
SELECT CAST(:owner AS TEXT)
UNION
SELECT p.person_id FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
WHERE g.person_id = :owner AND :scope = 'user'

-- name: sees
-- Return a row if a scope belongs to the user: the scope of this person under any id, or that of a session of the user.
SELECT 1
WHERE
    (
        :scope = 'user'
        AND (
            CAST(:owner AS TEXT) = CAST(:user_id AS TEXT)
            OR EXISTS (
                SELECT 1 FROM chat_persons u JOIN chat_persons o ON o.canonical_id = u.canonical_id
                WHERE u.person_id = :user_id AND o.person_id = :owner
            )
        )
    )
    OR (
        :scope = 'session'
        AND EXISTS (SELECT 1 FROM chat_sessions s WHERE s.session_id = :owner AND s.user_id = :user_id)
    )

-- name: hold_valid
-- Lock the valid fact of a key until the transaction ends, and return it.
UPDATE chat_facts SET updated_at = CASE WHEN updated_at > :now THEN updated_at ELSE :now END
WHERE scope = :scope AND owner = :owner AND key = :key AND valid_to IS NULL
RETURNING
    fact_id, scope, owner, key, value, kind, confidence, confirmed, contradicted, valid_from, valid_to, updated_at

-- name: confirm
UPDATE chat_facts
SET
    confirmed = confirmed + 1,
    kind = :kind,
    confidence = CASE WHEN confidence > :confidence THEN confidence ELSE :confidence END
WHERE fact_id = :fact_id

-- name: close
UPDATE chat_facts SET valid_to = :valid_to, contradicted = contradicted + 1 WHERE fact_id = :fact_id

-- name: insert_fact
INSERT INTO chat_facts (
    fact_id, scope, owner, session_id, person_id, key, value, kind, confidence, confirmed, contradicted, valid_from,
    valid_to, updated_at
)
VALUES (
    :fact_id, :scope, :owner, :session_id, :person_id, :key, :value, :kind, :confidence, :confirmed, :contradicted,
    :valid_from, :valid_to, :updated_at
)

-- name: add_evidence
-- A fact keeps only its first :most pieces of evidence.
INSERT INTO chat_fact_evidence (fact_id, session_id, seq, run_id, noted_at)
SELECT :fact_id, CAST(:session_id AS TEXT), CAST(:seq AS BIGINT), CAST(:run_id AS TEXT), :now
WHERE (SELECT count(*) FROM chat_fact_evidence WHERE fact_id = :fact_id) < :most
ON CONFLICT DO NOTHING

-- name: has_evidence
SELECT 1 FROM chat_fact_evidence
WHERE fact_id = :fact_id AND coalesce(session_id, '') = coalesce(CAST(:session_id AS TEXT), '')
    AND coalesce(seq, 0) = coalesce(CAST(:seq AS BIGINT), 0)
    AND coalesce(run_id, '') = coalesce(CAST(:run_id AS TEXT), '')

-- name: evidence
WITH wanted (fact_id) AS (
VALUES (:fact_id)
)
SELECT e.fact_id, e.session_id, e.seq, e.run_id
FROM wanted w JOIN chat_fact_evidence e ON e.fact_id = w.fact_id
ORDER BY e.fact_id, e.noted_at, e.session_id, e.seq

-- name: fact_columns
-- Included by other statements: the columns that `fact_of` reads.
SELECT
    f.fact_id, f.scope, f.owner, f.key, f.value, f.kind, f.confidence, f.confirmed, f.contradicted, f.valid_from,
    f.valid_to, f.updated_at
FROM chat_facts f

-- name: fact
-- include: fact_columns
WHERE f.fact_id = :fact_id

-- name: fact_filters
-- Included by other statements.
    AND (CAST(:kind AS TEXT) IS NULL OR f.kind = :kind)
    AND (CAST(:key AS TEXT) IS NULL OR f.key IN (:key, :former_key))
    AND (
        CAST(:pattern AS TEXT) IS NULL
        OR translate(f.key, :capitals, :letters) LIKE :pattern ESCAPE '\'
        OR translate(f.value, :capitals, :letters) LIKE CAST(:escaped AS TEXT) ESCAPE '\'
        OR (substr(f.value, 1, 1) <> '"' AND translate(f.value, :capitals, :letters) LIKE :pattern ESCAPE '\')
    )

-- name: facts
-- Most recently changed first, after the cursor (:updated_at, :fact_id).
-- include: fact_columns
WHERE (f.updated_at, f.fact_id) < (:updated_at, :fact_id)
    AND (f.valid_to IS NULL OR CAST(:past AS BOOLEAN))
    AND (CAST(:scope AS TEXT) IS NULL OR f.scope = :scope)
-- include: fact_filters
    AND (
        CAST(:user_id AS TEXT) IS NULL
        OR f.person_id IN (
            SELECT p.person_id FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
            WHERE g.person_id = :user_id
        )
        OR f.session_id IN (SELECT s.session_id FROM chat_sessions s WHERE s.user_id = :user_id)
    )
ORDER BY f.updated_at DESC, f.fact_id DESC
LIMIT :limit

-- name: facts_of
-- The same for one owner: a session, a workspace, or a person under any id.
-- include: fact_columns
WHERE f.scope = :scope
    AND f.owner IN (
-- include: owners
    )
    AND (f.updated_at, f.fact_id) < (:updated_at, :fact_id)
    AND (f.valid_to IS NULL OR CAST(:past AS BOOLEAN))
-- include: fact_filters
ORDER BY f.updated_at DESC, f.fact_id DESC
LIMIT :limit

-- name: keys_of
-- The keys of an owner's facts and proposals.
WITH ids (id) AS (
-- include: owners
)
SELECT key FROM chat_facts WHERE scope = :scope AND owner IN (SELECT id FROM ids)
UNION
SELECT key FROM chat_fact_proposals WHERE scope = :scope AND owner IN (SELECT id FROM ids)

-- name: proposals_of_keys
-- The proposals of the given keys; for a person, under any id.
WITH wanted (key) AS (
VALUES (:key)
)
SELECT p.proposal_id FROM chat_fact_proposals p
WHERE p.scope = :scope AND p.key IN (SELECT w.key FROM wanted w)
    AND p.owner IN (
-- include: owners
    )

-- name: facts_of_keys
-- All values of the given keys; for a person, under any id.
WITH wanted (key) AS (
VALUES (:key)
)
SELECT f.fact_id, f.key FROM chat_facts f
WHERE f.scope = :scope AND f.key IN (SELECT w.key FROM wanted w)
    AND f.owner IN (
-- include: owners
    )

-- name: lock_proposals_of_keys
-- On PostgreSQL only: on SQLite, the write lock of a transaction is enough.
-- include: proposals_of_keys
ORDER BY p.key COLLATE "C", p.proposal_id
FOR UPDATE

-- name: lock_facts_of_keys
-- Lock the newest value of a key first, as all writers do; the keys are in the order of Python's `sorted`. On PostgreSQL
-- only.
-- include: facts_of_keys
ORDER BY f.key COLLATE "C", f.owner COLLATE "C", f.valid_to DESC NULLS FIRST, f.valid_from DESC, f.fact_id DESC
FOR UPDATE

-- name: forget_proposals
WITH wanted (id) AS (
VALUES (:id)
)
DELETE FROM chat_fact_proposals WHERE proposal_id IN (SELECT w.id FROM wanted w)

-- name: retraction
-- Included by other statements: episodes of promoted facts that are about to be deleted. Unsent episodes are dropped, and
-- the worker of the Graphiti group deletes the others in Graphiti.
UPDATE chat_graph_deliveries SET
    content = NULL,
    status = CASE WHEN sent_at IS NULL THEN 'dead' ELSE 'sent' END,
    reason = CASE WHEN sent_at IS NULL THEN 'undone' ELSE 'forgotten' END,
    ended_at = :now
WHERE session_id IS NULL AND coalesce(reason, '') NOT IN ('undone', 'purged', 'forgotten')
    AND (group_id, name) IN (
        SELECT g.group_id, 'threadkeep.fact.' || f.fact_id || '.user'
        FROM chat_facts f JOIN chat_graph_groups g ON g.group_key = f.scope || ':' || f.owner
        WHERE

-- name: retract_facts
WITH wanted (id) AS (
VALUES (:id)
)
-- include: retraction
            f.fact_id IN (SELECT w.id FROM wanted w)
    )

-- name: retract_facts_of_owner
-- include: retraction
            f.scope = :scope AND f.owner IN (
-- include: owners
            )
    )

-- name: forget_facts
WITH wanted (id) AS (
VALUES (:id)
)
DELETE FROM chat_facts WHERE fact_id IN (SELECT w.id FROM wanted w)

-- name: remove_evidence
DELETE FROM chat_fact_evidence
WHERE fact_id = :fact_id AND coalesce(session_id, '') = coalesce(CAST(:session_id AS TEXT), '')
    AND coalesce(seq, 0) = coalesce(CAST(:seq AS BIGINT), 0)
    AND coalesce(run_id, '') = coalesce(CAST(:run_id AS TEXT), '')

-- name: unconfirm
UPDATE chat_facts SET confirmed = confirmed - 1, updated_at = :now WHERE fact_id = :fact_id

-- name: reopen
-- The value that was replaced becomes valid again, up to the end of the value that replaced it.
UPDATE chat_facts
SET valid_to = :valid_to, contradicted = contradicted - CASE WHEN CAST(:valid_to AS TIMESTAMPTZ) IS NULL THEN 1 ELSE 0 END,
    updated_at = :now
WHERE fact_id = (
    SELECT f.fact_id FROM chat_facts f
    WHERE f.scope = :scope AND f.owner = :owner AND f.key = :key AND f.valid_to = :valid_from
    ORDER BY f.valid_from DESC, f.fact_id DESC
    LIMIT 1
)
