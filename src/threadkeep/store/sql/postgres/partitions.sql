-- Turns chat_messages and chat_search into tables partitioned by a hash of the session id; in a new schema in one step.
-- In a database with messages the copy is filled in steps while others write: triggers note the ranges of messages that
-- change, and the copy is complete when no range is left.

-- name: state
-- The numbers of partitions of the tables and of an unfinished copy; whether a copy was begun; the owner of the tables,
-- if this user is not the owner; and the views that prevent the tables from being replaced.
SELECT
    (SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('chat_messages')),
    (SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('chat_messages_new')),
    to_regclass('chat_partition_changes') IS NOT NULL,
    (
        SELECT CAST(CAST(relowner AS REGROLE) AS TEXT) FROM pg_class
        WHERE oid = to_regclass('chat_messages') AND relowner <> CAST(quote_ident(current_user) AS REGROLE)
    ),
    (
        SELECT string_agg(DISTINCT CAST(CAST(r.ev_class AS REGCLASS) AS TEXT), ', ')
        FROM pg_depend d JOIN pg_rewrite r ON d.classid = CAST('pg_rewrite' AS REGCLASS) AND r.oid = d.objid
        WHERE d.refobjid IN (to_regclass('chat_messages'), to_regclass('chat_search'))
    )

-- name: lock
-- The same lock as for migrations.
SELECT pg_advisory_xact_lock(7310865112)

-- name: begin
CREATE TABLE IF NOT EXISTS chat_partition_changes (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id TEXT NOT NULL,
    first_seq  BIGINT NOT NULL,
    last_seq   BIGINT NOT NULL
);
CREATE OR REPLACE FUNCTION threadkeep_note_message() RETURNS TRIGGER LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DECLARE
        changed RECORD := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    BEGIN
        INSERT INTO chat_partition_changes (session_id, first_seq, last_seq)
        VALUES (changed.session_id, changed.seq, changed.seq);
        RETURN NULL;
    END
$$;
CREATE OR REPLACE FUNCTION threadkeep_note_index() RETURNS TRIGGER LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
    BEGIN
        INSERT INTO chat_partition_changes (session_id, first_seq, last_seq)
        SELECT NEW.session_id, least(c.before, c.after) + 1, greatest(c.before, c.after)
        FROM (VALUES (OLD.indexed_seq, NEW.indexed_seq), (OLD.archived_seq, NEW.archived_seq)) AS c (before, after)
        WHERE c.before <> c.after;
        RETURN NULL;
    END
$$;
DROP TRIGGER IF EXISTS threadkeep_note_index ON chat_sessions;
CREATE TRIGGER threadkeep_note_index AFTER UPDATE OF indexed_seq, archived_seq ON chat_sessions
FOR EACH ROW EXECUTE FUNCTION threadkeep_note_index();
DROP TRIGGER IF EXISTS threadkeep_note_message ON chat_messages;
CREATE TRIGGER threadkeep_note_message AFTER INSERT OR UPDATE OR DELETE ON chat_messages
FOR EACH ROW EXECUTE FUNCTION threadkeep_note_message()

-- name: note_all
-- Note all existing messages as ranges to copy. The triggers already note all changes.
INSERT INTO chat_partition_changes (session_id, first_seq, last_seq)
SELECT s.session_id, r.first_seq, r.first_seq + 99
FROM chat_sessions s CROSS JOIN LATERAL generate_series(1, s.last_seq, 100) AS r (first_seq)
ORDER BY s.session_id, r.first_seq

-- name: count
-- Pass the number of partitions to the block in `create`, which cannot have parameters.
SELECT set_config('threadkeep.partitions', :count, TRUE)

-- name: create
-- Use a sequence, because identity columns of partitioned tables need PostgreSQL 17.
CREATE TABLE chat_messages_new (
    LIKE chat_messages INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    PRIMARY KEY (session_id, seq),
    CONSTRAINT chat_messages_session_id_fkey
    FOREIGN KEY (session_id) REFERENCES chat_sessions (session_id) ON DELETE CASCADE
) PARTITION BY HASH (session_id);
CREATE SEQUENCE chat_messages_document OWNED BY chat_messages_new.document;
ALTER TABLE chat_messages_new ALTER document SET DEFAULT nextval('chat_messages_document');
CREATE TABLE chat_search_new (
    session_id TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    document   BIGINT NOT NULL,
    terms      SMALLINT[] NOT NULL,
    PRIMARY KEY (session_id, seq)
) PARTITION BY HASH (session_id);
DO $$
    DECLARE
        partitions INTEGER := current_setting('threadkeep.partitions');
        name TEXT;
    BEGIN
        FOREACH name IN ARRAY ARRAY['chat_messages', 'chat_search'] LOOP
            FOR part IN 0 .. partitions - 1 LOOP
                EXECUTE format(
                    'CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)',
                    name || '_part_' || part, name || '_new', partitions, part
                );
            END LOOP;
        END LOOP;
    END
$$

-- name: left
SELECT count(*) FROM chat_partition_changes

-- name: take
-- Take and delete the oldest noted ranges, so that a message is not copied before the message that it replaces.
DELETE FROM chat_partition_changes
WHERE number IN (SELECT number FROM chat_partition_changes ORDER BY number LIMIT :limit)
RETURNING session_id, first_seq, last_seq

-- name: keep
-- Lock the sessions against deletion before any row of the copy, in the order that all writers use.
SELECT 1 FROM chat_sessions
WHERE session_id IN (SELECT r.session_id FROM json_to_recordset(:ranges) AS r (session_id TEXT))
ORDER BY session_id FOR KEY SHARE

-- name: drop_messages
DELETE FROM chat_messages_new n
USING json_to_recordset(:ranges) AS r (session_id TEXT, first_seq BIGINT, last_seq BIGINT)
WHERE n.session_id = r.session_id AND n.seq BETWEEN r.first_seq AND r.last_seq

-- name: drop_texts
DELETE FROM chat_search_new n
USING json_to_recordset(:ranges) AS r (session_id TEXT, first_seq BIGINT, last_seq BIGINT)
WHERE n.session_id = r.session_id AND n.seq BETWEEN r.first_seq AND r.last_seq

-- name: copy_messages
-- OFFSET 0 makes PostgreSQL use an index lookup for each range.
INSERT INTO chat_messages_new
SELECT m.*
FROM json_to_recordset(:ranges) AS r (session_id TEXT, first_seq BIGINT, last_seq BIGINT)
CROSS JOIN LATERAL (
    SELECT * FROM chat_messages m WHERE m.session_id = r.session_id AND m.seq BETWEEN r.first_seq AND r.last_seq OFFSET 0
) m
ON CONFLICT (session_id, seq) DO NOTHING

-- name: copy_texts
INSERT INTO chat_search_new (session_id, seq, document, terms)
SELECT m.session_id, m.seq, m.document, f.terms
FROM json_to_recordset(:ranges) AS r (session_id TEXT, first_seq BIGINT, last_seq BIGINT)
CROSS JOIN LATERAL (
    SELECT m.session_id, m.seq, m.document FROM chat_messages m
    WHERE m.session_id = r.session_id AND m.seq BETWEEN r.first_seq AND r.last_seq
    OFFSET 0
) m
CROSS JOIN LATERAL (SELECT f.terms FROM chat_search f WHERE f.document = m.document OFFSET 0) f
ON CONFLICT (session_id, seq) DO NOTHING

-- name: index
-- Create the indexes after copying, because sorting once takes less time than inserting each row.
CREATE UNIQUE INDEX IF NOT EXISTS idx_chat_messages_id_new ON chat_messages_new (session_id, id);
CREATE UNIQUE INDEX IF NOT EXISTS idx_chat_messages_answer_new
ON chat_messages_new (session_id, answers, coalesce(author, ''), coalesce(ordinal, 1))
WHERE ((answers IS NOT NULL) AND (status = 'complete') AND (superseded_at IS NULL));
CREATE INDEX IF NOT EXISTS idx_chat_messages_author_new
ON chat_messages_new (author) WHERE ((role = 'user') AND (author IS NOT NULL));
CREATE INDEX IF NOT EXISTS idx_chat_messages_sender_new
ON chat_messages_new ((metadata ->> 'sender_id'))
WHERE ((role = 'user') AND (length(metadata ->> 'sender_id') <= 512));
CREATE INDEX IF NOT EXISTS idx_chat_search_terms_new
ON chat_search_new USING gin (terms) WITH (gin_pending_list_limit='512');
ANALYZE chat_messages_new;
ANALYZE chat_search_new

-- name: hold
-- Writers of messages lock the session first, so waiting for the sessions first prevents deadlocks. Dropping a table
-- that refers to the sessions takes the same lock on them.
LOCK TABLE chat_sessions, chat_messages, chat_search IN ACCESS EXCLUSIVE MODE

-- name: swap
SELECT setval('chat_messages_document', nextval(pg_get_serial_sequence('chat_messages', 'document')));
DO $$
    DECLARE
        granted RECORD;
    BEGIN
        FOR granted IN
            SELECT
                a.privilege_type AS privilege, c.relname || '_new' AS name,
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
            FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
            WHERE c.oid IN (to_regclass('chat_messages'), to_regclass('chat_search'))
        LOOP
            EXECUTE format('GRANT %s ON %I TO %s', granted.privilege, granted.name, granted.grantee);
            IF granted.privilege = 'INSERT' THEN
                EXECUTE format('GRANT USAGE ON SEQUENCE chat_messages_document TO %s', granted.grantee);
            END IF;
        END LOOP;
    END
$$;
DROP TABLE chat_messages;
DROP TABLE chat_search;
DROP TRIGGER IF EXISTS threadkeep_note_index ON chat_sessions;
DROP FUNCTION IF EXISTS threadkeep_note_index();
DROP FUNCTION IF EXISTS threadkeep_note_message();
DROP TABLE IF EXISTS chat_partition_changes;
ALTER TABLE chat_messages_new RENAME TO chat_messages;
ALTER TABLE chat_search_new RENAME TO chat_search;
ALTER INDEX chat_messages_new_pkey RENAME TO chat_messages_pkey;
ALTER INDEX chat_search_new_pkey RENAME TO chat_search_pkey;
ALTER INDEX idx_chat_messages_id_new RENAME TO idx_chat_messages_id;
ALTER INDEX idx_chat_messages_answer_new RENAME TO idx_chat_messages_answer;
ALTER INDEX idx_chat_messages_author_new RENAME TO idx_chat_messages_author;
ALTER INDEX idx_chat_messages_sender_new RENAME TO idx_chat_messages_sender;
ALTER INDEX idx_chat_search_terms_new RENAME TO idx_chat_search_terms

-- name: abandon
DROP TABLE IF EXISTS chat_messages_new, chat_search_new;
DROP TRIGGER IF EXISTS threadkeep_note_index ON chat_sessions;
DROP TRIGGER IF EXISTS threadkeep_note_message ON chat_messages;
DROP FUNCTION IF EXISTS threadkeep_note_index();
DROP FUNCTION IF EXISTS threadkeep_note_message();
DROP TABLE IF EXISTS chat_partition_changes
