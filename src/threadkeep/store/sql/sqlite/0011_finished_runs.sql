-- What finished turns leave behind takes little room: compact records of model calls, the trace of a run in one row, what
-- was asked by reference.

-- `manifest` is compact JSON, or JSON as it is where it was stored before. `created_at` is in microseconds since 1970;
-- strftime gets whole seconds, since before SQLite 3.44 it rounds a fraction up to the next one. A process of before that
-- still runs would store a text there, which is neither found nor deleted by its time.
CREATE TABLE chat_compact_manifests (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, session_id, call)
);

INSERT INTO chat_compact_manifests (session_id, run_id, call, created_at, manifest)
SELECT
    session_id, run_id, call,
    CAST(strftime('%s', substr(created_at, 1, 19)) AS INTEGER) * 1000000 + CAST(substr(created_at, 21, 6) AS INTEGER),
    CAST(manifest AS BLOB)
FROM chat_manifests
ORDER BY created_at, run_id, call;

DROP TABLE chat_manifests;

ALTER TABLE chat_compact_manifests RENAME TO chat_manifests;

CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);
CREATE INDEX idx_chat_manifests_created_at ON chat_manifests (created_at);

-- Tables that are in the order of their rows take less room than those in the order of ids, and so do their indexes. A
-- run's `input` and `result` are compact JSON, or JSON as it is where it was stored before. What hangs on runs is made
-- anew before them: it would go with the table that it refers to.
CREATE TABLE chat_compact_runs (
    run_id              TEXT PRIMARY KEY NOT NULL,
    session_id          TEXT,
    message_id          TEXT,
    workflow            TEXT NOT NULL,
    status              TEXT NOT NULL CHECK (
        status IN ('queued', 'running', 'waiting', 'done', 'failed', 'cancelled', 'interrupted')
    ),
    owner               TEXT,
    result              BLOB,
    error               TEXT,
    started_at          TEXT,
    heartbeat_at        TEXT,
    ended_at            TEXT,
    version             TEXT,
    user_id             TEXT,
    parent_run_id       TEXT,
    root_run_id         TEXT NOT NULL,
    depth               INTEGER NOT NULL DEFAULT 0,
    node_id             TEXT,
    trigger             TEXT NOT NULL,
    arrival             INTEGER,
    input               BLOB,
    interrupt           TEXT,
    resume_value        TEXT,
    budget              TEXT,
    attempts            INTEGER NOT NULL DEFAULT 0,
    cancel_requested_at TEXT,
    cancel_reason       TEXT,
    set_aside           INTEGER NOT NULL DEFAULT 0,
    created_at          TEXT NOT NULL,
    deadline_at         TEXT
);

INSERT INTO chat_compact_runs (
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at, version,
    user_id, parent_run_id, root_run_id, depth, node_id, trigger, arrival, input, interrupt, resume_value, budget, attempts,
    cancel_requested_at, cancel_reason, set_aside, created_at, deadline_at
)
SELECT
    run_id, session_id, message_id, workflow, status, owner, CAST(result AS BLOB), error, started_at, heartbeat_at, ended_at,
    version, user_id, parent_run_id, root_run_id, depth, node_id, trigger, arrival, CAST(input AS BLOB), interrupt, resume_value,
    budget, attempts, cancel_requested_at, cancel_reason, set_aside, created_at, deadline_at
FROM chat_runs
ORDER BY created_at, run_id;

CREATE TABLE chat_compact_run_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    PRIMARY KEY (session_id, message_id)
) WITHOUT ROWID;

INSERT INTO chat_compact_run_messages (session_id, message_id, run_id)
SELECT session_id, message_id, run_id FROM chat_run_messages;

DROP TABLE chat_run_messages;

ALTER TABLE chat_compact_run_messages RENAME TO chat_run_messages;

CREATE INDEX idx_chat_run_messages_run_id ON chat_run_messages (run_id);

-- `events` are those of a run that is over, as compact JSON, and `usage` is what its model calls took: what is in these is
-- in no other row.
CREATE TABLE chat_compact_run_traces (
    run_id      TEXT PRIMARY KEY NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    last_number INTEGER NOT NULL,
    characters  INTEGER NOT NULL,
    cut         INTEGER NOT NULL DEFAULT 0,
    events      BLOB,
    usage       TEXT
) WITHOUT ROWID;

INSERT INTO chat_compact_run_traces (run_id, last_number, characters, cut)
SELECT run_id, last_number, characters, cut FROM chat_run_traces;

DROP TABLE chat_run_traces;

ALTER TABLE chat_compact_run_traces RENAME TO chat_run_traces;

CREATE TABLE chat_compact_run_events (
    run_id     TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    node       TEXT,
    data       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

INSERT INTO chat_compact_run_events (run_id, number, kind, node, data, created_at)
SELECT run_id, number, kind, node, data, created_at FROM chat_run_events;

DROP TABLE chat_run_events;

ALTER TABLE chat_compact_run_events RENAME TO chat_run_events;

CREATE TABLE chat_compact_run_usage (
    run_id            TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    model             TEXT NOT NULL,
    calls             INTEGER NOT NULL,
    estimated_calls   INTEGER NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cost              REAL,
    PRIMARY KEY (run_id, model)
) WITHOUT ROWID;

INSERT INTO chat_compact_run_usage (
    run_id, model, calls, estimated_calls, input_tokens, output_tokens, cache_read_tokens, cost
)
SELECT run_id, model, calls, estimated_calls, input_tokens, output_tokens, cache_read_tokens, cost FROM chat_run_usage;

DROP TABLE chat_run_usage;

ALTER TABLE chat_compact_run_usage RENAME TO chat_run_usage;

CREATE TABLE chat_compact_run_tool_calls (
    run_id   TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    call_id  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    status   TEXT NOT NULL CHECK (status IN ('begun', 'finished')),
    result   TEXT,
    begun_at TEXT NOT NULL,
    ended_at TEXT,
    PRIMARY KEY (run_id, call_id)
) WITHOUT ROWID;

INSERT INTO chat_compact_run_tool_calls (run_id, call_id, tool, status, result, begun_at, ended_at)
SELECT run_id, call_id, tool, status, result, begun_at, ended_at FROM chat_run_tool_calls;

DROP TABLE chat_run_tool_calls;

ALTER TABLE chat_compact_run_tool_calls RENAME TO chat_run_tool_calls;

CREATE TABLE chat_compact_run_manifests (
    run_id     TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, call)
);

INSERT INTO chat_compact_run_manifests (run_id, call, created_at, manifest)
SELECT
    run_id, call,
    CAST(strftime('%s', substr(created_at, 1, 19)) AS INTEGER) * 1000000 + CAST(substr(created_at, 21, 6) AS INTEGER),
    CAST(manifest AS BLOB)
FROM chat_run_manifests
ORDER BY created_at, run_id, call;

DROP TABLE chat_run_manifests;

ALTER TABLE chat_compact_run_manifests RENAME TO chat_run_manifests;

CREATE INDEX idx_chat_run_manifests_created_at ON chat_run_manifests (created_at);

CREATE TABLE chat_compact_run_texts (
    run_id  TEXT NOT NULL REFERENCES chat_compact_runs (run_id) ON DELETE CASCADE,
    digest  TEXT NOT NULL,
    body    BLOB NOT NULL,
    used_at TEXT NOT NULL,
    PRIMARY KEY (run_id, digest)
) WITHOUT ROWID;

INSERT INTO chat_compact_run_texts (run_id, digest, body, used_at)
SELECT run_id, digest, body, used_at FROM chat_run_texts;

DROP TABLE chat_run_texts;

ALTER TABLE chat_compact_run_texts RENAME TO chat_run_texts;

CREATE INDEX idx_chat_run_texts_used_at ON chat_run_texts (used_at);

DROP TABLE chat_runs;

ALTER TABLE chat_compact_runs RENAME TO chat_runs;

CREATE UNIQUE INDEX idx_chat_runs_message_id ON chat_runs (session_id, message_id);
CREATE UNIQUE INDEX idx_chat_runs_arrival ON chat_runs (session_id, arrival);
CREATE INDEX idx_chat_runs_open ON chat_runs (session_id, arrival) WHERE status IN ('queued', 'running');
CREATE INDEX idx_chat_runs_queued ON chat_runs (created_at, run_id) WHERE status = 'queued';
CREATE INDEX idx_chat_runs_owner ON chat_runs (owner) WHERE status = 'running';
CREATE INDEX idx_chat_runs_created_at ON chat_runs (created_at);
CREATE INDEX idx_chat_runs_user_id ON chat_runs (user_id, created_at) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_runs_parent_run_id ON chat_runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX idx_chat_runs_root_run_id ON chat_runs (root_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX idx_chat_runs_waiting ON chat_runs (created_at, run_id) WHERE status = 'waiting';
CREATE INDEX idx_chat_runs_set_aside ON chat_runs (created_at, run_id) WHERE set_aside;
