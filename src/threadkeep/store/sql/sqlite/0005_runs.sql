-- Runs of workflows: queued, at work, waiting for a person, over; their traces, their usage, and what is left of them.

-- A request that named its message is a run of the chat, as before. Its session may be missing now, as its message may:
-- the runs of children and of the terminal have none. `arrival` is the order of the runs of a session. Where `input` is
-- NULL a process has claimed the message and alone knows what was asked.
CREATE TABLE chat_runs_of_workflows (
    run_id              TEXT PRIMARY KEY,
    session_id          TEXT,
    message_id          TEXT,
    workflow            TEXT NOT NULL,
    status              TEXT NOT NULL CHECK (
        status IN ('queued', 'running', 'waiting', 'done', 'failed', 'cancelled', 'interrupted')
    ),
    owner               TEXT,
    result              TEXT,
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
    input               TEXT,
    interrupt           TEXT,
    resume_value        TEXT,
    budget              TEXT,
    attempts            INTEGER NOT NULL DEFAULT 0,
    cancel_requested_at TEXT,
    cancel_reason       TEXT,
    set_aside           INTEGER NOT NULL DEFAULT 0,
    created_at          TEXT NOT NULL,
    deadline_at         TEXT
) WITHOUT ROWID;

INSERT INTO chat_runs_of_workflows (
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at,
    root_run_id, trigger, attempts, created_at
)
SELECT
    run_id, session_id, message_id, workflow, status, owner, result, error, started_at, heartbeat_at, ended_at,
    run_id, 'http', 1, started_at
FROM chat_runs;

DROP TABLE chat_runs;

ALTER TABLE chat_runs_of_workflows RENAME TO chat_runs;

CREATE UNIQUE INDEX idx_chat_runs_message_id ON chat_runs (session_id, message_id);
CREATE UNIQUE INDEX idx_chat_runs_arrival ON chat_runs (session_id, arrival);
CREATE INDEX idx_chat_runs_open ON chat_runs (session_id, arrival) WHERE status IN ('queued', 'running');
CREATE INDEX idx_chat_runs_queued ON chat_runs (created_at, run_id) WHERE status = 'queued';
CREATE INDEX idx_chat_runs_owner ON chat_runs (owner) WHERE status = 'running';
CREATE INDEX idx_chat_runs_created_at ON chat_runs (created_at, run_id);
CREATE INDEX idx_chat_runs_user_id ON chat_runs (user_id, created_at, run_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_runs_parent_run_id ON chat_runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX idx_chat_runs_root_run_id ON chat_runs (root_run_id) WHERE parent_run_id IS NOT NULL;

-- Messages that joined a run which another one began.
CREATE TABLE chat_run_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    PRIMARY KEY (session_id, message_id)
) WITHOUT ROWID;

CREATE INDEX idx_chat_run_messages_run_id ON chat_run_messages (run_id);

-- How much trace a run has; cut where it was more than is kept.
CREATE TABLE chat_run_traces (
    run_id      TEXT PRIMARY KEY NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    last_number INTEGER NOT NULL,
    characters  INTEGER NOT NULL,
    cut         INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- The trace: number is 1, 2, 3 … in each run, without gaps.
CREATE TABLE chat_run_events (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    node       TEXT,
    data       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

-- What a run's own model calls took, by model; those of its children are with the children.
CREATE TABLE chat_run_usage (
    run_id            TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    model             TEXT NOT NULL,
    calls             INTEGER NOT NULL,
    estimated_calls   INTEGER NOT NULL,
    input_tokens      INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cost              REAL,
    PRIMARY KEY (run_id, model)
) WITHOUT ROWID;

-- Calls of tools that may not be run twice.
CREATE TABLE chat_run_tool_calls (
    run_id   TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    call_id  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    status   TEXT NOT NULL CHECK (status IN ('begun', 'finished')),
    result   TEXT,
    begun_at TEXT NOT NULL,
    ended_at TEXT,
    PRIMARY KEY (run_id, call_id)
) WITHOUT ROWID;

-- Runs that may have checkpoints. They stay here until those are removed, also when the run itself is gone.
CREATE TABLE chat_run_checkpoints (
    run_id TEXT PRIMARY KEY NOT NULL
) WITHOUT ROWID;

-- Definitions, so that a run ends with the one that it began with.
CREATE TABLE chat_workflows (
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    definition    TEXT,
    first_used_at TEXT NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;

-- Which session a user's next message to a workflow goes on with.
CREATE TABLE chat_active_sessions (
    user_id    TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    session_id TEXT NOT NULL,
    since      TEXT NOT NULL,
    PRIMARY KEY (user_id, workflow)
) WITHOUT ROWID;

CREATE INDEX idx_chat_active_sessions_session_id ON chat_active_sessions (session_id);
