-- Persons and their ids.

-- name: person
-- The row of one id of a person, with the person's canonical id.
SELECT person_id, canonical_id, merged_into, first_seen_at, last_seen_at FROM chat_persons WHERE person_id = :person_id

-- name: insert_person
INSERT INTO chat_persons (person_id, canonical_id, first_seen_at, last_seen_at)
VALUES (:person_id, :person_id, :now, :now)
ON CONFLICT (person_id) DO NOTHING

-- name: see_person
UPDATE chat_persons SET last_seen_at = :now WHERE person_id = :person_id AND last_seen_at < :now

-- name: see_name
INSERT INTO chat_person_names (person_id, name, last_seen_at)
VALUES (:person_id, :name, :now)
ON CONFLICT (person_id, name) DO UPDATE SET last_seen_at = excluded.last_seen_at

-- name: aliases
-- All ids of a person, the canonical one first.
SELECT p.person_id, p.canonical_id, p.merged_into, p.first_seen_at, p.last_seen_at
FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
WHERE g.person_id = :person_id
ORDER BY p.person_id <> p.canonical_id, p.first_seen_at, p.person_id

-- name: names
SELECT n.name, n.person_id
FROM chat_persons g
    JOIN chat_persons p ON p.canonical_id = g.canonical_id
    JOIN chat_person_names n ON n.person_id = p.person_id
WHERE g.person_id = :person_id
ORDER BY n.last_seen_at DESC, n.name

-- name: preferences
-- Use no join, because SQLite would then read the facts of all persons.
SELECT f.key, f.value
FROM chat_facts f
WHERE f.scope = 'user' AND f.valid_to IS NULL AND f.kind = 'preference'
    AND f.owner IN (
        SELECT p.person_id FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
        WHERE g.person_id = :person_id
    )
ORDER BY f.updated_at, f.fact_id

-- name: persons
-- Canonical ids, most recently seen first, after the cursor (:updated_at, :person_id).
SELECT p.person_id, p.last_seen_at
FROM chat_persons p
WHERE p.merged_into IS NULL AND (p.last_seen_at, p.person_id) < (:updated_at, :person_id)
    AND (
        CAST(:pattern AS TEXT) IS NULL
        OR EXISTS (
            SELECT 1 FROM chat_persons a LEFT JOIN chat_person_names n ON n.person_id = a.person_id
            WHERE a.canonical_id = p.person_id
                AND translate(a.person_id || ' ' || coalesce(n.name, ''), :capitals, :letters) LIKE :pattern ESCAPE '\'
        )
    )
ORDER BY p.last_seen_at DESC, p.person_id DESC
LIMIT :limit

-- name: merge
UPDATE chat_persons SET merged_into = :into WHERE person_id = :person_id

-- name: unmerge
UPDATE chat_persons SET merged_into = NULL WHERE person_id = :person_id AND merged_into IS NOT NULL

-- name: set_canonical
-- Set the canonical id of an id and of all ids merged into it, directly or indirectly.
WITH RECURSIVE below (person_id) AS (
    SELECT CAST(:person_id AS TEXT)
    UNION
    SELECT p.person_id FROM chat_persons p JOIN below b ON p.merged_into = b.person_id
)
UPDATE chat_persons SET canonical_id = :canonical_id WHERE person_id IN (SELECT person_id FROM below)

-- name: forget_person
-- Foreign keys also delete the person's names, facts, procedures and proposals.
DELETE FROM chat_persons WHERE canonical_id = :person_id
