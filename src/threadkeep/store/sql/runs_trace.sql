-- Traces and usage of runs.

-- name: hold_trace
-- The row stays locked until the transaction ends, so events of all processes are numbered in sequence. `events` and
-- `usage` are the packed values from the end of the run.
INSERT INTO chat_run_traces AS t (run_id, last_number, characters)
SELECT r.run_id, 0, 0 FROM chat_runs r WHERE r.run_id = :run_id
ON CONFLICT (run_id) DO UPDATE SET last_number = t.last_number
RETURNING last_number, characters, cut, events, usage

-- name: set_trace
UPDATE chat_run_traces SET last_number = :last_number, characters = :characters, cut = :cut WHERE run_id = :run_id

-- name: pack_trace
UPDATE chat_run_traces SET
    last_number = :last_number, characters = :characters, cut = :cut, events = :events, usage = :usage
WHERE run_id = :run_id

-- name: put_trace
-- The whole trace of a run.
INSERT INTO chat_run_traces (run_id, last_number, characters, cut, events, usage)
VALUES (:run_id, :last_number, :characters, :cut, :events, :usage)
ON CONFLICT (run_id) DO UPDATE SET
    last_number = excluded.last_number, characters = excluded.characters, cut = excluded.cut, events = excluded.events,
    usage = excluded.usage

-- name: forget_events
DELETE FROM chat_run_events WHERE run_id = :run_id

-- name: forget_usage
DELETE FROM chat_run_usage WHERE run_id = :run_id

-- name: insert_event
INSERT INTO chat_run_events (run_id, number, kind, node, data, created_at)
VALUES (:run_id, :number, :kind, :node, :data, :created_at)

-- name: events
-- Events after a number, and the packed ones, in one snapshot, because events move when they are packed.
SELECT e.number, e.kind, e.node, e.data, e.created_at, CAST(NULL AS BYTEA) AS events FROM (
    SELECT number, kind, node, data, created_at FROM chat_run_events
    WHERE run_id = :run_id AND number > :after
    ORDER BY number
    LIMIT :limit
) e
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, t.events FROM chat_run_traces t WHERE t.run_id = :run_id AND t.events IS NOT NULL

-- name: loose_events
SELECT number, kind, node, data, created_at FROM chat_run_events
WHERE run_id = :run_id
ORDER BY number
LIMIT :limit

-- name: last_number
SELECT last_number FROM chat_run_traces WHERE run_id = :run_id

-- name: add_usage
INSERT INTO chat_run_usage AS u (
    run_id, model, calls, estimated_calls, input_tokens, output_tokens, cache_read_tokens, cost
)
VALUES (:run_id, :model, :calls, :estimated_calls, :input_tokens, :output_tokens, :cache_read_tokens, :cost)
ON CONFLICT (run_id, model) DO UPDATE SET
    calls = u.calls + excluded.calls,
    estimated_calls = u.estimated_calls + excluded.estimated_calls,
    input_tokens = u.input_tokens + excluded.input_tokens,
    output_tokens = u.output_tokens + excluded.output_tokens,
    cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
    cost = CASE
        WHEN u.cost IS NULL THEN excluded.cost
        WHEN excluded.cost IS NULL THEN u.cost
        ELSE u.cost + excluded.cost
    END

-- name: loose_usage
SELECT
    model, calls, input_tokens, output_tokens, cache_read_tokens, estimated_calls, cost
FROM chat_run_usage
WHERE run_id = :run_id

-- name: usage
-- The usage of a run by model, and the packed usage of its trace.
SELECT
    u.model, u.calls, u.input_tokens, u.output_tokens, u.cache_read_tokens, u.estimated_calls, u.cost,
    CAST(NULL AS TEXT) AS usage
FROM chat_run_usage u
WHERE u.run_id = :run_id
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, t.usage FROM chat_run_traces t
WHERE t.run_id = :run_id AND t.usage IS NOT NULL

-- name: usage_with_children
-- The usage of a run and all its descendants, each counted once. SQLite reads the tables of a cross join in their order.
WITH RECURSIVE below (run_id) AS (
    SELECT run_id FROM chat_runs WHERE run_id = :run_id
    UNION
    SELECT c.run_id FROM below b CROSS JOIN chat_runs c WHERE c.parent_run_id = b.run_id
)
SELECT
    u.model, u.calls, u.input_tokens, u.output_tokens, u.cache_read_tokens, u.estimated_calls, u.cost,
    CAST(NULL AS TEXT) AS usage
FROM below b CROSS JOIN chat_run_usage u WHERE u.run_id = b.run_id
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, t.usage
FROM below b CROSS JOIN chat_run_traces t WHERE t.run_id = b.run_id AND t.usage IS NOT NULL

-- name: begin_tool
-- Record a call only if the run exists.
INSERT INTO chat_run_tool_calls (run_id, call_id, tool, status, begun_at)
SELECT run_id, :call_id, :tool, 'begun', :now FROM chat_runs WHERE run_id = :run_id
ON CONFLICT (run_id, call_id) DO NOTHING
RETURNING status

-- name: tool_call
SELECT status, result FROM chat_run_tool_calls WHERE run_id = :run_id AND call_id = :call_id

-- name: finish_tool
UPDATE chat_run_tool_calls SET status = 'finished', result = :result, ended_at = :now
WHERE run_id = :run_id AND call_id = :call_id AND status = 'begun'
RETURNING status
