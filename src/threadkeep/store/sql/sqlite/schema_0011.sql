-- The schema that a new database begins with: what the migrations up to 0011 make of an empty one, without the way there.
-- They say why each part is as it is. Nothing is changed here: what comes later is a migration.

-- Conversations, and what is known of each.

CREATE TABLE chat_sessions (
    session_id    TEXT PRIMARY KEY,
    user_id       TEXT,
    title         TEXT,
    last_message  TEXT,
    message_count INTEGER NOT NULL DEFAULT 0,
    last_seq      INTEGER NOT NULL DEFAULT 0,
    last_user_seq INTEGER NOT NULL DEFAULT 0,
    reset_seq     INTEGER NOT NULL DEFAULT 0,
    indexed_seq   INTEGER NOT NULL DEFAULT 0,
    active        INTEGER NOT NULL DEFAULT 1,
    tags          TEXT NOT NULL DEFAULT '[]',
    metadata      TEXT NOT NULL DEFAULT '{}',
    created_at    TEXT NOT NULL,
    updated_at    TEXT NOT NULL,
    archived_seq  INTEGER NOT NULL DEFAULT 0,
    deleted_seq   INTEGER NOT NULL DEFAULT 0,
    retention     TEXT,
    graph_version INTEGER
) WITHOUT ROWID;
CREATE INDEX idx_chat_sessions_updated_at ON chat_sessions (updated_at, session_id);
CREATE INDEX idx_chat_sessions_user_id ON chat_sessions (user_id, updated_at, session_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_sessions_to_index ON chat_sessions (session_id) WHERE indexed_seq < last_seq;
CREATE INDEX idx_chat_sessions_retention ON chat_sessions (session_id) WHERE retention IS NOT NULL;
CREATE INDEX idx_chat_sessions_graph_version ON chat_sessions (session_id) WHERE graph_version IS NOT NULL;

CREATE TABLE chat_messages (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    seq        INTEGER NOT NULL,
    id         TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system')),
    content    TEXT NOT NULL,
    tokens     INTEGER NOT NULL,
    status     TEXT NOT NULL DEFAULT 'complete' CHECK (status IN ('complete', 'interrupted', 'failed')),
    confidence REAL,
    escalated  INTEGER NOT NULL DEFAULT 0,
    run_id     TEXT,
    metadata   TEXT NOT NULL DEFAULT '{}',
    original   TEXT,
    sent_at    TEXT,
    created_at TEXT NOT NULL,
    document   INTEGER PRIMARY KEY,
    UNIQUE (session_id, seq)
);
CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);

CREATE TABLE chat_summaries (
    session_id     TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    id             TEXT NOT NULL,
    first_seq      INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL,
    level          INTEGER NOT NULL,
    text           TEXT NOT NULL,
    model          TEXT NOT NULL,
    prompt_version TEXT NOT NULL,
    tokens         INTEGER NOT NULL,
    superseded_by  TEXT,
    created_at     TEXT NOT NULL,
    PRIMARY KEY (session_id, id),
    CHECK (1 <= first_seq AND first_seq <= last_seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX idx_chat_summaries_active ON chat_summaries (session_id, first_seq) WHERE superseded_by IS NULL;

CREATE TABLE chat_claims (
    session_id    TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    purpose       TEXT NOT NULL,
    owner         TEXT NOT NULL,
    claimed_until TEXT NOT NULL,
    PRIMARY KEY (session_id, purpose)
) WITHOUT ROWID;

CREATE TABLE chat_duties (
    duty          TEXT PRIMARY KEY NOT NULL,
    owner         TEXT,
    claimed_until TEXT NOT NULL,
    done_at       TEXT
) WITHOUT ROWID;

CREATE TABLE chat_deleted_ids (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    id         TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE INDEX idx_chat_deleted_ids_created_at ON chat_deleted_ids (created_at);

CREATE TABLE chat_conversation_layouts (
    namespace       TEXT NOT NULL,
    meta_key_suffix TEXT NOT NULL,
    value_field     TEXT NOT NULL,
    first_used_at   TEXT NOT NULL,
    PRIMARY KEY (namespace, meta_key_suffix, value_field)
) WITHOUT ROWID;

-- Their search: an index of words that does not keep the texts a second time.

CREATE VIEW chat_search_texts AS
    SELECT m.document, m.content FROM chat_search_docsize d JOIN chat_messages m ON m.document = d.id;

CREATE VIRTUAL TABLE chat_search USING fts5 (
    content, content = 'chat_search_texts', content_rowid = 'document', tokenize = 'trigram', detail = none
);

CREATE TABLE chat_embeddings (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    model      TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    vector     BLOB NOT NULL,
    PRIMARY KEY (session_id, model, seq)
) WITHOUT ROWID;

-- What models saw, and how well their tokens are estimated.

CREATE TABLE chat_anchors (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    profile    TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (session_id, profile)
) WITHOUT ROWID;

CREATE TABLE chat_manifests (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, session_id, call)
);
CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);
CREATE INDEX idx_chat_manifests_created_at ON chat_manifests (created_at);

CREATE TABLE chat_context_texts (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    digest     TEXT NOT NULL,
    body       BLOB NOT NULL,
    used_at    TEXT NOT NULL,
    PRIMARY KEY (session_id, digest)
) WITHOUT ROWID;
CREATE INDEX idx_chat_context_texts_used_at ON chat_context_texts (used_at);

CREATE TABLE chat_token_factors (
    model      TEXT PRIMARY KEY NOT NULL,
    factor     REAL NOT NULL,
    samples    INTEGER NOT NULL,
    updated_at TEXT NOT NULL
) WITHOUT ROWID;

-- Runs of workflows.

CREATE TABLE chat_workflows (
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    definition    TEXT,
    first_used_at TEXT NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;

CREATE TABLE chat_active_sessions (
    user_id    TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    session_id TEXT NOT NULL,
    since      TEXT NOT NULL,
    PRIMARY KEY (user_id, workflow)
) WITHOUT ROWID;
CREATE INDEX idx_chat_active_sessions_session_id ON chat_active_sessions (session_id);

CREATE TABLE chat_runs (
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

CREATE TABLE chat_run_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    PRIMARY KEY (session_id, message_id)
) WITHOUT ROWID;
CREATE INDEX idx_chat_run_messages_run_id ON chat_run_messages (run_id);

CREATE TABLE chat_run_checkpoints (
    run_id TEXT PRIMARY KEY NOT NULL
) WITHOUT ROWID;

CREATE TABLE chat_answered_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('done', 'cancelled')),
    user_id    TEXT,
    trigger    TEXT NOT NULL,
    created_at TEXT NOT NULL,
    ended_at   TEXT NOT NULL,
    PRIMARY KEY (session_id, message_id)
) WITHOUT ROWID;
CREATE INDEX idx_chat_answered_messages_run_id ON chat_answered_messages (run_id);

CREATE TABLE chat_run_traces (
    run_id      TEXT PRIMARY KEY NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    last_number INTEGER NOT NULL,
    characters  INTEGER NOT NULL,
    cut         INTEGER NOT NULL DEFAULT 0,
    events      BLOB,
    usage       TEXT
) WITHOUT ROWID;

CREATE TABLE chat_run_events (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    number     INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    node       TEXT,
    data       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;

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

CREATE TABLE chat_run_manifests (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL CHECK (typeof(created_at) = 'integer'),
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, call)
);
CREATE INDEX idx_chat_run_manifests_created_at ON chat_run_manifests (created_at);

CREATE TABLE chat_run_texts (
    run_id  TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    digest  TEXT NOT NULL,
    body    BLOB NOT NULL,
    used_at TEXT NOT NULL,
    PRIMARY KEY (run_id, digest)
) WITHOUT ROWID;
CREATE INDEX idx_chat_run_texts_used_at ON chat_run_texts (used_at);
