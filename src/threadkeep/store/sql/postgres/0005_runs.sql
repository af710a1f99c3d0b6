-- Runs of workflows: queued, at work, waiting for a person, over; their traces, their usage, and what is left of them.

-- A request that named its message is a run of the chat, as before. Its session may be missing now, as its message may:
-- the runs of children and of the terminal have none. `arrival` is the order of the runs of a session. Where `input` is
-- NULL a process has claimed the message and alone knows what was asked.
ALTER TABLE chat_runs
    DROP CONSTRAINT chat_runs_status_check,
    ADD CONSTRAINT chat_runs_status_check CHECK (
        status IN ('queued', 'running', 'waiting', 'done', 'failed', 'cancelled', 'interrupted')
    ),
    ALTER COLUMN session_id DROP NOT NULL,
    ALTER COLUMN message_id DROP NOT NULL,
    ALTER COLUMN owner DROP NOT NULL,
    ALTER COLUMN started_at DROP NOT NULL,
    ALTER COLUMN heartbeat_at DROP NOT NULL,
    ADD COLUMN version TEXT,
    ADD COLUMN user_id TEXT,
    ADD COLUMN parent_run_id TEXT,
    ADD COLUMN root_run_id TEXT,
    ADD COLUMN depth INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN node_id TEXT,
    ADD COLUMN trigger TEXT,
    ADD COLUMN arrival BIGINT,
    ADD COLUMN input JSON,
    ADD COLUMN interrupt JSON,
    ADD COLUMN resume_value JSON,
    ADD COLUMN budget JSON,
    ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0,
    ADD COLUMN cancel_requested_at TIMESTAMPTZ,
    ADD COLUMN cancel_reason TEXT,
    ADD COLUMN set_aside BOOLEAN NOT NULL DEFAULT FALSE,
    ADD COLUMN created_at TIMESTAMPTZ,
    ADD COLUMN deadline_at TIMESTAMPTZ;

UPDATE chat_runs SET root_run_id = run_id, trigger = 'http', attempts = 1, created_at = started_at;

ALTER TABLE chat_runs
    ALTER COLUMN root_run_id SET NOT NULL,
    ALTER COLUMN trigger SET NOT NULL,
    ALTER COLUMN created_at SET NOT NULL;

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
);

CREATE INDEX idx_chat_run_messages_run_id ON chat_run_messages (run_id);

-- How much trace a run has; cut where it was more than is kept.
CREATE TABLE chat_run_traces (
    run_id      TEXT PRIMARY KEY REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    last_number BIGINT NOT NULL,
    characters  BIGINT NOT NULL,
    cut         BOOLEAN NOT NULL DEFAULT FALSE
);

-- The trace: number is 1, 2, 3 … in each run, without gaps.
CREATE TABLE chat_run_events (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    number     BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    node       TEXT,
    data       JSON NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (run_id, number)
);

-- What a run's own model calls took, by model; those of its children are with the children.
CREATE TABLE chat_run_usage (
    run_id            TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    model             TEXT NOT NULL,
    calls             BIGINT NOT NULL,
    estimated_calls   BIGINT NOT NULL,
    input_tokens      BIGINT NOT NULL,
    output_tokens     BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL,
    cost              DOUBLE PRECISION,
    PRIMARY KEY (run_id, model)
);

-- Calls of tools that may not be run twice.
CREATE TABLE chat_run_tool_calls (
    run_id   TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    call_id  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    status   TEXT NOT NULL CHECK (status IN ('begun', 'finished')),
    result   JSON,
    begun_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    PRIMARY KEY (run_id, call_id)
);

-- Runs that may have checkpoints. They stay here until those are removed, also when the run itself is gone.
CREATE TABLE chat_run_checkpoints (
    run_id TEXT PRIMARY KEY
);

-- Definitions, so that a run ends with the one that it began with.
CREATE TABLE chat_workflows (
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    definition    JSON,
    first_used_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (name, version)
);

-- Which session a user's next message to a workflow goes on with.
CREATE TABLE chat_active_sessions (
    user_id    TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    session_id TEXT NOT NULL,
    since      TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (user_id, workflow)
);

CREATE INDEX idx_chat_active_sessions_session_id ON chat_active_sessions (session_id);
