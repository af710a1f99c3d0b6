-- Damage of the tables that PostgreSQL has detected.

-- name: damage
SELECT 'the index ' || c.relname || ' is not valid'
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = ANY (SELECT oid FROM pg_namespace WHERE nspname = ANY (current_schemas(FALSE)))
AND NOT (i.indisvalid AND i.indisready)
UNION ALL
SELECT 'the constraint ' || conname || ' was never checked' FROM pg_constraint
WHERE connamespace = ANY (SELECT oid FROM pg_namespace WHERE nspname = ANY (current_schemas(FALSE))) AND NOT convalidated
UNION ALL
SELECT checksum_failures || ' pages have a wrong checksum' FROM pg_stat_database
WHERE datname = current_database() AND checksum_failures > 0

-- The function of the extension amcheck, if this user may call it.
-- name: amcheck
SELECT p.oid::regprocedure::text FROM pg_proc p
WHERE p.proname = 'bt_index_check' AND p.pronargs = 1 AND has_function_privilege(p.oid, 'EXECUTE')
LIMIT 1

-- name: indexes
SELECT c.oid::bigint, c.relname
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE a.amname = 'btree' AND c.relkind = 'i' AND i.indisvalid
AND c.relnamespace = ANY (SELECT oid FROM pg_namespace WHERE nspname = ANY (current_schemas(FALSE)))
ORDER BY c.relname

-- name: check_index
SELECT bt_index_check(:index::oid::regclass)
