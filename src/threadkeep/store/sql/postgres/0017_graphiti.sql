-- Graphiti: who allowed what to be sent, and what is on its way.

-- Decisions about what may go to an endpoint. `data_classes` are names with a space before and behind each.
CREATE TABLE chat_graph_consents (
    number       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version      BIGINT NOT NULL,
    endpoint     TEXT NOT NULL,
    data_classes TEXT NOT NULL,
    decision     TEXT NOT NULL CHECK (decision IN ('granted', 'declined', 'withdrawn')),
    decided_by   TEXT NOT NULL,
    decided_at   TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_chat_graph_consents_endpoint ON chat_graph_consents (endpoint, number);

-- The decisions that are in force: the newest of each endpoint, if it grants.
CREATE VIEW chat_graph_grants AS
SELECT c.version, c.endpoint, c.data_classes
FROM chat_graph_consents c
WHERE c.decision = 'granted'
    AND NOT EXISTS (SELECT 1 FROM chat_graph_consents n WHERE n.endpoint = c.endpoint AND n.number > c.number);

-- Workspaces that the operator trusts; '' stands for runs that name none.
CREATE TABLE chat_graph_trust (
    workspace  TEXT PRIMARY KEY NOT NULL,
    trusted_by TEXT NOT NULL,
    trusted_at TIMESTAMPTZ NOT NULL
);

-- Stored turns with a complete answer, until a worker has made deliveries of them.
CREATE TABLE chat_graph_turns (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    first_seq  BIGINT NOT NULL,
    last_seq   BIGINT NOT NULL,
    workspace  TEXT,
    backfill   BOOLEAN NOT NULL DEFAULT FALSE,
    created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_chat_graph_turns_session_id ON chat_graph_turns (session_id);

-- The groups of scopes. `group_key` is the scope's kind and owner, such as `user:ann`. One process at a time has a group.
CREATE TABLE chat_graph_groups (
    group_key   TEXT PRIMARY KEY NOT NULL,
    group_id    TEXT NOT NULL UNIQUE,
    scope       TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner       TEXT,
    owned_until TIMESTAMPTZ,
    next_try_at TIMESTAMPTZ NOT NULL,
    seen_at     TIMESTAMPTZ,
    failures    BIGINT NOT NULL DEFAULT 0,
    error       TEXT
);

-- One row for each message and group. The text stays in the transcript, but for `content`, which is in none. Rows of
-- what has arrived stay as long as their session: by them a message is sent once, however often it is asked for.
CREATE TABLE chat_graph_deliveries (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id   TEXT NOT NULL REFERENCES chat_graph_groups (group_id) ON DELETE CASCADE,
    scope      TEXT NOT NULL,
    workspace  TEXT,
    turn       TEXT NOT NULL,
    name       TEXT NOT NULL,
    session_id TEXT REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    message_id TEXT,
    role       TEXT NOT NULL,
    content    TEXT,
    bytes      BIGINT NOT NULL,
    backfill   BOOLEAN NOT NULL DEFAULT FALSE,
    said_at    TIMESTAMPTZ NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('queued', 'sent', 'confirmed', 'dead')),
    reason     TEXT,
    attempts   BIGINT NOT NULL DEFAULT 0,
    repeats    BIGINT NOT NULL DEFAULT 0,
    created_at TIMESTAMPTZ NOT NULL,
    sent_at    TIMESTAMPTZ,
    ended_at   TIMESTAMPTZ,
    UNIQUE (group_id, name)
);
CREATE INDEX idx_chat_graph_deliveries_open ON chat_graph_deliveries (group_id, number) WHERE status IN ('queued', 'sent');
CREATE INDEX idx_chat_graph_deliveries_dead ON chat_graph_deliveries (number) WHERE status = 'dead';
CREATE INDEX idx_chat_graph_deliveries_session_id ON chat_graph_deliveries (session_id) WHERE session_id IS NOT NULL;
