-- The schema of version 0.1.0. Later changes are migrations with higher numbers.

-- Conversations, their summaries, and claims on work.

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
    graph_version INTEGER,
    revision      INTEGER NOT NULL DEFAULT 0,
    parent_session_id TEXT,
    parent_seq    INTEGER,
    agent         TEXT
) WITHOUT ROWID;
CREATE INDEX idx_chat_sessions_updated_at ON chat_sessions (updated_at, session_id);
CREATE INDEX idx_chat_sessions_user_id ON chat_sessions (user_id, updated_at, session_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_sessions_to_index ON chat_sessions (session_id) WHERE indexed_seq < last_seq;
CREATE INDEX idx_chat_sessions_retention ON chat_sessions (session_id) WHERE retention IS NOT NULL;
CREATE INDEX idx_chat_sessions_graph_version ON chat_sessions (session_id) WHERE graph_version IS NOT NULL;
CREATE INDEX idx_chat_sessions_parent ON chat_sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;

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
    author     TEXT,
    answers    TEXT,
    ordinal    INTEGER,
    told_at    TEXT,
    superseded_at TEXT,
    superseded_by TEXT,
    UNIQUE (session_id, seq)
);
CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);
CREATE UNIQUE INDEX idx_chat_messages_answer
ON chat_messages (session_id, answers, coalesce(author, ''), coalesce(ordinal, 1))
WHERE answers IS NOT NULL AND status = 'complete' AND superseded_at IS NULL;

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

-- The search index of messages. It has trigrams, but no second copy of the texts.

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

-- Contexts of model calls: anchors, manifests, tool steps, and factors of token estimates.

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

CREATE TABLE chat_steps (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    author     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (session_id, author, seq, ordinal)
) WITHOUT ROWID;

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

CREATE TABLE chat_run_places (
    place   TEXT NOT NULL,
    run_id  TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    arrival INTEGER NOT NULL,
    PRIMARY KEY (place, arrival)
) WITHOUT ROWID;
CREATE UNIQUE INDEX idx_chat_run_places_run_id ON chat_run_places (run_id, place);

CREATE TABLE chat_run_checkpoints (
    run_id TEXT PRIMARY KEY NOT NULL
) WITHOUT ROWID;

CREATE VIEW chat_runs_before (run_id, before_run_id) AS
SELECT r.run_id, o.run_id
FROM chat_runs r JOIN chat_runs o ON o.session_id = r.session_id AND o.arrival < r.arrival
WHERE o.status IN ('queued', 'running')
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_run_places r
JOIN chat_run_places p ON p.place = r.place AND p.arrival < r.arrival
JOIN chat_runs o ON o.run_id = p.run_id
WHERE o.status IN ('queued', 'running')
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_run_places r JOIN chat_runs o ON o.session_id = r.place AND o.arrival < r.arrival
WHERE o.status IN ('queued', 'running') AND o.run_id <> r.run_id
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_runs r
JOIN chat_run_places p ON p.place = r.session_id AND p.arrival < r.arrival
JOIN chat_runs o ON o.run_id = p.run_id
WHERE o.status IN ('queued', 'running') AND o.run_id <> r.run_id;

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

-- Knowledge of more than one session: persons, facts and procedures.

CREATE TABLE chat_persons (
    person_id     TEXT PRIMARY KEY NOT NULL,
    canonical_id  TEXT NOT NULL,
    merged_into   TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    first_seen_at TEXT NOT NULL,
    last_seen_at  TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_chat_persons_canonical_id ON chat_persons (canonical_id);
CREATE INDEX idx_chat_persons_merged_into ON chat_persons (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX idx_chat_persons_last_seen_at ON chat_persons (last_seen_at, person_id);

CREATE TABLE chat_person_names (
    person_id    TEXT NOT NULL REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    name         TEXT NOT NULL,
    last_seen_at TEXT NOT NULL,
    PRIMARY KEY (person_id, name)
) WITHOUT ROWID;

CREATE TABLE chat_facts (
    fact_id      TEXT PRIMARY KEY NOT NULL,
    scope        TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner        TEXT NOT NULL,
    session_id   TEXT REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    person_id    TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    key          TEXT NOT NULL,
    value        TEXT NOT NULL,
    kind         TEXT NOT NULL,
    confidence   REAL NOT NULL,
    confirmed    INTEGER NOT NULL,
    contradicted INTEGER NOT NULL,
    valid_from   TEXT NOT NULL,
    valid_to     TEXT,
    updated_at   TEXT NOT NULL,
    CHECK ((scope = 'session') = (session_id IS NOT NULL) AND (scope = 'user') = (person_id IS NOT NULL))
);
CREATE UNIQUE INDEX idx_chat_facts_valid ON chat_facts (scope, owner, key) WHERE valid_to IS NULL;
CREATE INDEX idx_chat_facts_key ON chat_facts (scope, owner, key, valid_from);
CREATE INDEX idx_chat_facts_updated_at ON chat_facts (updated_at, fact_id);
CREATE INDEX idx_chat_facts_session_id ON chat_facts (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_facts_person_id ON chat_facts (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE chat_fact_evidence (
    fact_id    TEXT NOT NULL REFERENCES chat_facts (fact_id) ON DELETE CASCADE,
    session_id TEXT,
    seq        INTEGER,
    run_id     TEXT,
    noted_at   TEXT NOT NULL
);
CREATE UNIQUE INDEX idx_chat_fact_evidence
ON chat_fact_evidence (fact_id, coalesce(session_id, ''), coalesce(seq, 0), coalesce(run_id, ''));

CREATE TABLE chat_procedures (
    procedure_id  TEXT PRIMARY KEY NOT NULL,
    scope         TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner         TEXT NOT NULL,
    session_id    TEXT REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    person_id     TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    name          TEXT NOT NULL,
    description   TEXT NOT NULL,
    goal_contains TEXT NOT NULL,
    context_has   TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    content       TEXT NOT NULL,
    source        TEXT NOT NULL,
    active        INTEGER NOT NULL,
    used          INTEGER NOT NULL,
    succeeded     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    created_at    TEXT NOT NULL,
    updated_at    TEXT NOT NULL,
    CHECK ((scope = 'session') = (session_id IS NOT NULL) AND (scope = 'user') = (person_id IS NOT NULL))
);
CREATE UNIQUE INDEX idx_chat_procedures_name ON chat_procedures (scope, owner, name);
CREATE INDEX idx_chat_procedures_updated_at ON chat_procedures (updated_at, procedure_id);
CREATE INDEX idx_chat_procedures_session_id ON chat_procedures (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_procedures_person_id ON chat_procedures (person_id) WHERE person_id IS NOT NULL;

-- The outbox of answers, and the state of channels.

CREATE TABLE chat_outbox (
    number      INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    channel     TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('waiting', 'ready', 'delivered', 'failed', 'dropped', 'nothing')),
    content     TEXT,
    address     TEXT,
    parts_sent  INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 0,
    next_try_at TEXT NOT NULL,
    owner       TEXT,
    owned_until TEXT,
    uncertain   INTEGER NOT NULL DEFAULT FALSE,
    error       TEXT,
    created_at  TEXT NOT NULL,
    ended_at    TEXT,
    partial     TEXT,
    UNIQUE (session_id, channel, message_id)
);
CREATE INDEX idx_chat_outbox_ready ON chat_outbox (session_id, number) WHERE status = 'ready';
CREATE INDEX idx_chat_outbox_waiting ON chat_outbox (session_id) WHERE status = 'waiting';
CREATE INDEX idx_chat_outbox_ended_at ON chat_outbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE chat_channel_sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    channel    TEXT NOT NULL,
    address    TEXT NOT NULL,
    heard_at   TEXT NOT NULL,
    sent       INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE chat_channel_state (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    expires_at TEXT,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- Graphiti: consents to send data, and deliveries.

-- Decisions about the data that may be sent to an endpoint. Each name in `data_classes` has a space on both sides.
CREATE TABLE chat_graph_consents (
    number       INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    version      INTEGER NOT NULL,
    endpoint     TEXT NOT NULL,
    data_classes TEXT NOT NULL,
    decision     TEXT NOT NULL CHECK (decision IN ('granted', 'declined', 'withdrawn')),
    decided_by   TEXT NOT NULL,
    decided_at   TEXT NOT NULL
);
CREATE INDEX idx_chat_graph_consents_endpoint ON chat_graph_consents (endpoint, number);

-- The decisions in force: the newest decision about each endpoint, if it grants consent.
CREATE VIEW chat_graph_grants AS
SELECT c.version, c.endpoint, c.data_classes
FROM chat_graph_consents c
WHERE c.decision = 'granted'
    AND NOT EXISTS (SELECT 1 FROM chat_graph_consents n WHERE n.endpoint = c.endpoint AND n.number > c.number);

-- Workspaces that the operator trusts; '' stands for runs without a workspace.
CREATE TABLE chat_graph_trust (
    workspace  TEXT PRIMARY KEY NOT NULL,
    trusted_by TEXT NOT NULL,
    trusted_at TEXT NOT NULL
) WITHOUT ROWID;

-- Stored turns with a complete answer, until a worker has created their deliveries.
CREATE TABLE chat_graph_turns (
    number     INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    workspace  TEXT,
    backfill   INTEGER NOT NULL DEFAULT FALSE,
    created_at TEXT NOT NULL
);
CREATE INDEX idx_chat_graph_turns_session_id ON chat_graph_turns (session_id);

-- Graphiti groups. `group_key` is the scope's kind and owner, such as `user:ann`. One process at a time owns a group.
CREATE TABLE chat_graph_groups (
    group_key   TEXT PRIMARY KEY NOT NULL,
    group_id    TEXT NOT NULL UNIQUE,
    scope       TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner       TEXT,
    owned_until TEXT,
    next_try_at TEXT NOT NULL,
    seen_at     TEXT,
    failures    INTEGER NOT NULL DEFAULT 0,
    error       TEXT
) WITHOUT ROWID;

-- One row for each message and group. `content` has only texts that are in no transcript. Rows of delivered messages
-- stay as long as their session, so that a repeated request does not send a message again.
CREATE TABLE chat_graph_deliveries (
    number     INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    group_id   TEXT NOT NULL REFERENCES chat_graph_groups (group_id) ON DELETE CASCADE,
    scope      TEXT NOT NULL,
    workspace  TEXT,
    turn       TEXT NOT NULL,
    name       TEXT NOT NULL,
    session_id TEXT REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    message_id TEXT,
    role       TEXT NOT NULL,
    content    TEXT,
    bytes      INTEGER NOT NULL,
    backfill   INTEGER NOT NULL DEFAULT FALSE,
    said_at    TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('queued', 'sent', 'confirmed', 'dead')),
    reason     TEXT,
    attempts   INTEGER NOT NULL DEFAULT 0,
    repeats    INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    sent_at    TEXT,
    ended_at   TEXT,
    UNIQUE (group_id, name)
);
CREATE INDEX idx_chat_graph_deliveries_open ON chat_graph_deliveries (group_id, number) WHERE status IN ('queued', 'sent');
CREATE INDEX idx_chat_graph_deliveries_dead ON chat_graph_deliveries (number) WHERE status = 'dead';
CREATE INDEX idx_chat_graph_deliveries_session_id ON chat_graph_deliveries (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_graph_deliveries_backfill ON chat_graph_deliveries (workspace, sent_at) WHERE backfill;

CREATE TABLE chat_fact_proposals (
    proposal_id TEXT PRIMARY KEY NOT NULL,
    scope       TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner       TEXT NOT NULL,
    session_id  TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    person_id   TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    seq         INTEGER NOT NULL,
    run_id      TEXT,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    kind        TEXT,
    promoted    TEXT,
    confidence  REAL NOT NULL,
    learner     TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('open', 'accepted', 'rejected', 'undone')),
    fact_id     TEXT,
    created_at  TEXT NOT NULL,
    updated_at  TEXT NOT NULL,
    decided_by  TEXT
);
CREATE INDEX idx_chat_fact_proposals_updated_at ON chat_fact_proposals (updated_at, proposal_id);
CREATE INDEX idx_chat_fact_proposals_key ON chat_fact_proposals (scope, owner, key);
CREATE INDEX idx_chat_fact_proposals_session_id ON chat_fact_proposals (session_id, status);
CREATE INDEX idx_chat_fact_proposals_person_id ON chat_fact_proposals (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE chat_fact_learning (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    learner    TEXT NOT NULL,
    upto_seq   INTEGER NOT NULL,
    PRIMARY KEY (session_id, learner)
) WITHOUT ROWID;

-- Keys of the HTTP service. `digest` is the SHA-256 of a random key, which is not stored. A key with a `user_id` is
-- only valid for that user. Revoked keys stay, because a service that ever had a key rejects requests without one.
CREATE TABLE chat_api_keys (
    key_id       TEXT PRIMARY KEY NOT NULL,
    name         TEXT NOT NULL,
    digest       TEXT NOT NULL UNIQUE,
    scope        TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    user_id      TEXT,
    created_at   TEXT NOT NULL,
    expires_at   TEXT,
    revoked_at   TEXT,
    last_used_at TEXT
) WITHOUT ROWID;
