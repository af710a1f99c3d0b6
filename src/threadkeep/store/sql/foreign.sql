-- Reads of other systems' tables, for the command `import` and to find LangGraph's tables; nothing is written.
-- On SQLite, parameters are bytes, which may not be UTF-8.

-- The names of all tables and of their columns.
-- name: columns_sqlite
SELECT tables.name, columns.name
FROM sqlite_master AS tables JOIN pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table' AND tables.sql NOT LIKE 'CREATE VIRTUAL%'

-- The same rows as information_schema.columns has, which takes three times as long to plan and to read.
-- name: columns_postgres
SELECT tables.relname, columns.attname
FROM pg_class AS tables JOIN pg_attribute AS columns ON columns.attrelid = tables.oid
WHERE tables.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname = ANY (current_schemas(FALSE)))
    AND tables.relkind IN ('r', 'p', 'v', 'f') AND columns.attnum > 0 AND NOT columns.attisdropped
    AND (has_table_privilege(tables.oid, 'SELECT, INSERT, UPDATE, REFERENCES')
        OR has_column_privilege(tables.oid, columns.attnum, 'SELECT, INSERT, UPDATE, REFERENCES'))

-- The threads of a LangGraph checkpointer; the checkpoints of subgraphs are left out.
-- name: threads
SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id

-- The threads in a Threadkeep database, without those of runs, because the messages of runs are in sessions.
-- name: threads_but_runs
SELECT DISTINCT thread_id FROM checkpoints
WHERE checkpoint_ns = '' AND thread_id NOT IN (SELECT run_id FROM chat_runs) ORDER BY thread_id

-- The sessions of the OpenAI Agents SDK. A session may have only messages, which the SDK still reads.
-- name: agent_sessions
SELECT i.session_id, s.created_at, s.updated_at
FROM (SELECT session_id FROM agent_sessions UNION SELECT session_id FROM agent_messages) i
LEFT JOIN agent_sessions s ON s.session_id = i.session_id
ORDER BY i.session_id

-- name: agent_items
SELECT id, message_data, created_at FROM agent_messages WHERE session_id = CAST(:session_id AS TEXT) ORDER BY id

-- The items of a session on one of its branches; none for a session without branches.
-- name: agent_branch_items
SELECT items.id, items.message_data, items.created_at
FROM agent_messages AS items JOIN message_structure AS structure ON structure.message_id = items.id
WHERE structure.session_id = CAST(:session_id AS TEXT) AND structure.branch_id = CAST(:branch AS TEXT)
ORDER BY structure.sequence_number

-- name: agent_branches
SELECT 1 FROM message_structure WHERE session_id = CAST(:session_id AS TEXT) LIMIT 1

-- The items of a namespace of a LangGraph store.
-- name: store_keys
SELECT key FROM store WHERE prefix = CAST(:prefix AS TEXT) ORDER BY key

-- name: store_item
SELECT value, created_at, updated_at FROM store WHERE prefix = CAST(:prefix AS TEXT) AND key = CAST(:key AS TEXT)
