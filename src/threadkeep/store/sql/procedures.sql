-- Procedures: instructions for a kind of task, each with a name that is unique in its scope.

-- name: save_procedure
-- If the content of an existing procedure changes, its counts restart from 0.
INSERT INTO chat_procedures (
    procedure_id, scope, owner, session_id, person_id, name, description, goal_contains, context_has, content_type,
    content, source, active, used, succeeded, failed, created_at, updated_at
)
VALUES (
    :procedure_id, :scope, :owner, :session_id, :person_id, :name, :description, :goal_contains, :context_has,
    :content_type, :content, :source, :active, :used, :succeeded, :failed, :now, :now
)
ON CONFLICT (scope, owner, name) DO UPDATE
SET
    used = CASE WHEN chat_procedures.content = excluded.content THEN chat_procedures.used ELSE 0 END,
    succeeded = CASE WHEN chat_procedures.content = excluded.content THEN chat_procedures.succeeded ELSE 0 END,
    failed = CASE WHEN chat_procedures.content = excluded.content THEN chat_procedures.failed ELSE 0 END,
    description = excluded.description,
    goal_contains = excluded.goal_contains,
    context_has = excluded.context_has,
    content_type = excluded.content_type,
    content = excluded.content,
    source = excluded.source,
    active = excluded.active,
    updated_at = excluded.updated_at
RETURNING
    procedure_id, scope, owner, name, content, content_type, description, goal_contains, context_has, source, active,
    used, succeeded, failed, created_at, updated_at

-- name: procedure_columns
-- Included by other statements.
SELECT
    q.procedure_id, q.scope, q.owner, q.name, q.content, q.content_type, q.description, q.goal_contains, q.context_has,
    q.source, q.active, q.used, q.succeeded, q.failed, q.created_at, q.updated_at
FROM chat_procedures q

-- name: procedure
-- include: procedure_columns
WHERE q.procedure_id = :procedure_id

-- name: procedure_filters
-- Included by other statements.
    AND (CAST(:name AS TEXT) IS NULL OR q.name = :name)
    AND (CAST(:active AS BOOLEAN) IS NULL OR q.active = CAST(:active AS BOOLEAN))
    AND (
        CAST(:pattern AS TEXT) IS NULL OR translate(q.name || ' ' || q.description, :capitals, :letters) LIKE :pattern ESCAPE '\'
    )

-- name: procedures
-- Most recently changed first, after the cursor (:updated_at, :procedure_id).
-- include: procedure_columns
WHERE (q.updated_at, q.procedure_id) < (:updated_at, :procedure_id)
    AND (CAST(:scope AS TEXT) IS NULL OR q.scope = :scope)
-- include: procedure_filters
    AND (
        CAST(:user_id AS TEXT) IS NULL
        OR q.person_id IN (
            SELECT p.person_id FROM chat_persons g JOIN chat_persons p ON p.canonical_id = g.canonical_id
            WHERE g.person_id = :user_id
        )
        OR q.session_id IN (SELECT s.session_id FROM chat_sessions s WHERE s.user_id = :user_id)
    )
ORDER BY q.updated_at DESC, q.procedure_id DESC
LIMIT :limit

-- name: procedures_of
-- The same for one owner: a session, a workspace, or a person under any id.
-- include: procedure_columns
WHERE q.scope = :scope
    AND q.owner IN (
-- include: owners
    )
    AND (q.updated_at, q.procedure_id) < (:updated_at, :procedure_id)
-- include: procedure_filters
ORDER BY q.updated_at DESC, q.procedure_id DESC
LIMIT :limit

-- name: count_use
UPDATE chat_procedures
SET used = used + 1, succeeded = succeeded + :succeeded, failed = failed + :failed
WHERE procedure_id = :procedure_id

-- name: forget_procedure
DELETE FROM chat_procedures WHERE procedure_id = :procedure_id
