-- The schema of version 0.1.0. Later changes are migrations with higher numbers.

-- Conversations, their summaries, and claims on work.

CREATE TABLE chat_sessions (
    session_id        TEXT NOT NULL,
    user_id           TEXT,
    title             TEXT,
    last_message      TEXT,
    message_count     INTEGER NOT NULL DEFAULT 0,
    last_seq          BIGINT NOT NULL DEFAULT 0,
    last_user_seq     BIGINT NOT NULL DEFAULT 0,
    reset_seq         BIGINT NOT NULL DEFAULT 0,
    indexed_seq       BIGINT NOT NULL DEFAULT 0,
    active            BOOLEAN NOT NULL DEFAULT TRUE,
    tags              JSONB NOT NULL DEFAULT '[]',
    metadata          JSONB NOT NULL DEFAULT '{}',
    created_at        TIMESTAMPTZ NOT NULL,
    updated_at        TIMESTAMPTZ NOT NULL,
    archived_seq      BIGINT NOT NULL DEFAULT 0,
    deleted_seq       BIGINT NOT NULL DEFAULT 0,
    retention         JSON,
    graph_version     BIGINT,
    revision          BIGINT NOT NULL DEFAULT 0,
    parent_session_id TEXT,
    parent_seq        BIGINT,
    agent             TEXT,
    PRIMARY KEY (session_id)
) WITH (fillfactor=50);
CREATE INDEX idx_chat_sessions_updated_at ON chat_sessions (updated_at, session_id);
CREATE INDEX idx_chat_sessions_user_id ON chat_sessions (user_id, updated_at, session_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_sessions_to_index ON chat_sessions (session_id) WHERE indexed_seq < last_seq;
CREATE INDEX idx_chat_sessions_retention ON chat_sessions (session_id) WHERE retention IS NOT NULL;
CREATE INDEX idx_chat_sessions_graph_version ON chat_sessions (session_id) WHERE graph_version IS NOT NULL;
CREATE INDEX idx_chat_sessions_parent ON chat_sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;

CREATE TABLE chat_messages (
    session_id    TEXT NOT NULL,
    seq           BIGINT NOT NULL,
    id            TEXT NOT NULL,
    role          TEXT NOT NULL,
    content       TEXT NOT NULL,
    tokens        BIGINT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'complete',
    confidence    DOUBLE PRECISION,
    escalated     BOOLEAN NOT NULL DEFAULT FALSE,
    run_id        TEXT,
    metadata      JSONB NOT NULL DEFAULT '{}',
    original      JSON,
    sent_at       TIMESTAMPTZ,
    created_at    TIMESTAMPTZ NOT NULL,
    document      BIGINT GENERATED ALWAYS AS IDENTITY,
    author        TEXT,
    answers       TEXT,
    ordinal       BIGINT,
    told_at       TIMESTAMPTZ,
    superseded_at TIMESTAMPTZ,
    superseded_by TEXT,
    UNIQUE (document),
    PRIMARY KEY (session_id, seq),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK (role IN ('user', 'assistant', 'system')),
    CHECK (status IN ('complete', 'interrupted', 'failed'))
);
CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);
CREATE UNIQUE INDEX idx_chat_messages_answer
ON chat_messages (session_id, answers, coalesce(author, ''), coalesce(ordinal, 1))
WHERE ((answers IS NOT NULL) AND (status = 'complete') AND (superseded_at IS NULL));

CREATE TABLE chat_summaries (
    session_id     TEXT NOT NULL,
    id             TEXT NOT NULL,
    first_seq      BIGINT NOT NULL,
    last_seq       BIGINT NOT NULL,
    level          INTEGER NOT NULL,
    text           TEXT NOT NULL,
    model          TEXT NOT NULL,
    prompt_version TEXT NOT NULL,
    tokens         BIGINT NOT NULL,
    superseded_by  TEXT,
    created_at     TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK ((1 <= first_seq) AND (first_seq <= last_seq))
);
CREATE UNIQUE INDEX idx_chat_summaries_active ON chat_summaries (session_id, first_seq) WHERE superseded_by IS NULL;

CREATE TABLE chat_claims (
    session_id    TEXT NOT NULL,
    purpose       TEXT NOT NULL,
    owner         TEXT NOT NULL,
    claimed_until TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, purpose),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);

CREATE TABLE chat_duties (
    duty          TEXT NOT NULL,
    owner         TEXT,
    claimed_until TIMESTAMPTZ NOT NULL,
    done_at       TIMESTAMPTZ,
    PRIMARY KEY (duty)
);

CREATE TABLE chat_deleted_ids (
    session_id TEXT NOT NULL,
    id         TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_deleted_ids_created_at ON chat_deleted_ids (created_at);

CREATE TABLE chat_conversation_layouts (
    namespace       TEXT NOT NULL,
    meta_key_suffix TEXT NOT NULL,
    value_field     TEXT NOT NULL,
    first_used_at   TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (namespace, meta_key_suffix, value_field)
);

-- The search index of messages. It has fingerprints of terms, but no second copy of the texts.

CREATE TABLE chat_search (
    document BIGINT NOT NULL,
    terms    SMALLINT[] NOT NULL,
    PRIMARY KEY (document)
);
CREATE INDEX idx_chat_search_terms ON chat_search USING gin (terms) WITH (gin_pending_list_limit='512');

CREATE TABLE chat_embeddings (
    session_id TEXT NOT NULL,
    model      TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    vector     BYTEA NOT NULL,
    PRIMARY KEY (session_id, model, seq),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);

-- Contexts of model calls: anchors, manifests, tool steps, and factors of token estimates.

CREATE TABLE chat_anchors (
    session_id TEXT NOT NULL,
    profile    TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    PRIMARY KEY (session_id, profile),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);

CREATE TABLE chat_manifests (
    session_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    manifest   BYTEA NOT NULL,
    PRIMARY KEY (run_id, session_id, call),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_manifests_created_at ON chat_manifests (created_at);
CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);

CREATE TABLE chat_context_texts (
    session_id TEXT NOT NULL,
    digest     TEXT NOT NULL,
    body       BYTEA NOT NULL,
    used_at    TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, digest),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_context_texts_used_at ON chat_context_texts (used_at);

CREATE TABLE chat_steps (
    session_id TEXT NOT NULL,
    author     TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    ordinal    BIGINT NOT NULL,
    body       BYTEA NOT NULL,
    PRIMARY KEY (session_id, author, seq, ordinal),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);

CREATE TABLE chat_token_factors (
    model      TEXT NOT NULL,
    factor     DOUBLE PRECISION NOT NULL,
    samples    BIGINT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (model)
);

-- Runs of workflows.

CREATE TABLE chat_workflows (
    name          TEXT NOT NULL,
    version       TEXT NOT NULL,
    definition    JSON,
    first_used_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE chat_active_sessions (
    user_id    TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    session_id TEXT NOT NULL,
    since      TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (user_id, workflow)
);
CREATE INDEX idx_chat_active_sessions_session_id ON chat_active_sessions (session_id);

CREATE TABLE chat_runs (
    run_id              TEXT NOT NULL,
    session_id          TEXT,
    message_id          TEXT,
    workflow            TEXT NOT NULL,
    status              TEXT NOT NULL,
    owner               TEXT,
    result              BYTEA,
    error               TEXT,
    started_at          TIMESTAMPTZ,
    heartbeat_at        TIMESTAMPTZ,
    ended_at            TIMESTAMPTZ,
    version             TEXT,
    user_id             TEXT,
    parent_run_id       TEXT,
    root_run_id         TEXT NOT NULL,
    depth               INTEGER NOT NULL DEFAULT 0,
    node_id             TEXT,
    trigger             TEXT NOT NULL,
    arrival             BIGINT,
    input               BYTEA,
    interrupt           JSON,
    resume_value        JSON,
    budget              JSON,
    attempts            INTEGER NOT NULL DEFAULT 0,
    cancel_requested_at TIMESTAMPTZ,
    cancel_reason       TEXT,
    set_aside           BOOLEAN NOT NULL DEFAULT FALSE,
    created_at          TIMESTAMPTZ NOT NULL,
    deadline_at         TIMESTAMPTZ,
    PRIMARY KEY (run_id),
    CHECK (status IN ('queued', 'running', 'waiting', 'done', 'failed', 'cancelled', 'interrupted'))
);
CREATE UNIQUE INDEX idx_chat_runs_message_id ON chat_runs (session_id, message_id);
CREATE UNIQUE INDEX idx_chat_runs_arrival ON chat_runs (session_id, arrival);
CREATE INDEX idx_chat_runs_open ON chat_runs (session_id, arrival) WHERE status IN ('queued', 'running');
CREATE INDEX idx_chat_runs_queued ON chat_runs (created_at, run_id) WHERE (status = 'queued');
CREATE INDEX idx_chat_runs_owner ON chat_runs (owner) WHERE (status = 'running');
CREATE INDEX idx_chat_runs_parent_run_id ON chat_runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX idx_chat_runs_root_run_id ON chat_runs (root_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX idx_chat_runs_waiting ON chat_runs (created_at, run_id) WHERE (status = 'waiting');
CREATE INDEX idx_chat_runs_set_aside ON chat_runs (created_at, run_id) WHERE set_aside;
CREATE INDEX idx_chat_runs_created_at ON chat_runs (created_at);
CREATE INDEX idx_chat_runs_user_id ON chat_runs (user_id, created_at) WHERE user_id IS NOT NULL;

CREATE TABLE chat_run_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    PRIMARY KEY (session_id, message_id),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_run_messages_run_id ON chat_run_messages (run_id);

CREATE TABLE chat_run_places (
    place   TEXT NOT NULL,
    run_id  TEXT NOT NULL,
    arrival BIGINT NOT NULL,
    PRIMARY KEY (place, arrival),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX idx_chat_run_places_run_id ON chat_run_places (run_id, place);

CREATE TABLE chat_run_checkpoints (
    run_id TEXT NOT NULL,
    PRIMARY KEY (run_id)
);

CREATE VIEW chat_runs_before AS
 SELECT r.run_id,
    o.run_id AS before_run_id
   FROM chat_runs r
     JOIN chat_runs o ON o.session_id = r.session_id AND o.arrival < r.arrival
  WHERE o.status = ANY (ARRAY['queued', 'running'])
UNION ALL
 SELECT r.run_id,
    o.run_id AS before_run_id
   FROM chat_run_places r
     JOIN chat_run_places p ON p.place = r.place AND p.arrival < r.arrival
     JOIN chat_runs o ON o.run_id = p.run_id
  WHERE o.status = ANY (ARRAY['queued', 'running'])
UNION ALL
 SELECT r.run_id,
    o.run_id AS before_run_id
   FROM chat_run_places r
     JOIN chat_runs o ON o.session_id = r.place AND o.arrival < r.arrival
  WHERE (o.status = ANY (ARRAY['queued', 'running'])) AND o.run_id <> r.run_id
UNION ALL
 SELECT r.run_id,
    o.run_id AS before_run_id
   FROM chat_runs r
     JOIN chat_run_places p ON p.place = r.session_id AND p.arrival < r.arrival
     JOIN chat_runs o ON o.run_id = p.run_id
  WHERE (o.status = ANY (ARRAY['queued', 'running'])) AND o.run_id <> r.run_id;

CREATE TABLE chat_answered_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL,
    user_id    TEXT,
    trigger    TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    ended_at   TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, message_id),
    CHECK (status IN ('done', 'cancelled'))
);
CREATE INDEX idx_chat_answered_messages_run_id ON chat_answered_messages (run_id);

CREATE TABLE chat_run_traces (
    run_id      TEXT NOT NULL,
    last_number BIGINT NOT NULL,
    characters  BIGINT NOT NULL,
    cut         BOOLEAN NOT NULL DEFAULT FALSE,
    events      BYTEA,
    usage       TEXT,
    PRIMARY KEY (run_id),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);

CREATE TABLE chat_run_events (
    run_id     TEXT NOT NULL,
    number     BIGINT NOT NULL,
    kind       TEXT NOT NULL,
    node       TEXT,
    data       JSON NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (run_id, number),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);

CREATE TABLE chat_run_usage (
    run_id            TEXT NOT NULL,
    model             TEXT NOT NULL,
    calls             BIGINT NOT NULL,
    estimated_calls   BIGINT NOT NULL,
    input_tokens      BIGINT NOT NULL,
    output_tokens     BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL,
    cost              DOUBLE PRECISION,
    PRIMARY KEY (run_id, model),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);

CREATE TABLE chat_run_tool_calls (
    run_id   TEXT NOT NULL,
    call_id  TEXT NOT NULL,
    tool     TEXT NOT NULL,
    status   TEXT NOT NULL,
    result   JSON,
    begun_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    PRIMARY KEY (run_id, call_id),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE,
    CHECK (status IN ('begun', 'finished'))
);

CREATE TABLE chat_run_manifests (
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    manifest   BYTEA NOT NULL,
    PRIMARY KEY (run_id, call),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_run_manifests_created_at ON chat_run_manifests (created_at);

CREATE TABLE chat_run_texts (
    run_id  TEXT NOT NULL,
    digest  TEXT NOT NULL,
    body    BYTEA NOT NULL,
    used_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (run_id, digest),
    FOREIGN KEY (run_id) REFERENCES chat_runs(run_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_run_texts_used_at ON chat_run_texts (used_at);

-- Knowledge of more than one session: persons, facts and procedures.

CREATE TABLE chat_persons (
    person_id     TEXT NOT NULL,
    canonical_id  TEXT NOT NULL,
    merged_into   TEXT,
    first_seen_at TIMESTAMPTZ NOT NULL,
    last_seen_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (person_id),
    FOREIGN KEY (merged_into) REFERENCES chat_persons(person_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_persons_canonical_id ON chat_persons (canonical_id);
CREATE INDEX idx_chat_persons_merged_into ON chat_persons (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX idx_chat_persons_last_seen_at ON chat_persons (last_seen_at, person_id);

CREATE TABLE chat_person_names (
    person_id    TEXT NOT NULL,
    name         TEXT NOT NULL,
    last_seen_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (person_id, name),
    FOREIGN KEY (person_id) REFERENCES chat_persons(person_id) ON DELETE CASCADE
);

CREATE TABLE chat_facts (
    fact_id      TEXT NOT NULL,
    scope        TEXT NOT NULL,
    owner        TEXT NOT NULL,
    session_id   TEXT,
    person_id    TEXT,
    key          TEXT NOT NULL,
    value        TEXT NOT NULL,
    kind         TEXT NOT NULL,
    confidence   DOUBLE PRECISION NOT NULL,
    confirmed    BIGINT NOT NULL,
    contradicted BIGINT NOT NULL,
    valid_from   TIMESTAMPTZ NOT NULL,
    valid_to     TIMESTAMPTZ,
    updated_at   TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (fact_id),
    FOREIGN KEY (person_id) REFERENCES chat_persons(person_id) ON DELETE CASCADE,
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK (((scope = 'session') = (session_id IS NOT NULL)) AND ((scope = 'user') = (person_id IS NOT NULL))),
    CHECK (scope IN ('session', 'workspace', 'user'))
);
CREATE UNIQUE INDEX idx_chat_facts_valid ON chat_facts (scope, owner, key) WHERE valid_to IS NULL;
CREATE INDEX idx_chat_facts_key ON chat_facts (scope, owner, key, valid_from);
CREATE INDEX idx_chat_facts_updated_at ON chat_facts (updated_at, fact_id);
CREATE INDEX idx_chat_facts_session_id ON chat_facts (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_facts_person_id ON chat_facts (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE chat_fact_evidence (
    fact_id    TEXT NOT NULL,
    session_id TEXT,
    seq        BIGINT,
    run_id     TEXT,
    noted_at   TIMESTAMPTZ NOT NULL,
    FOREIGN KEY (fact_id) REFERENCES chat_facts(fact_id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX idx_chat_fact_evidence
ON chat_fact_evidence (fact_id, coalesce(session_id, ''), coalesce(seq, (0)::bigint), coalesce(run_id, ''));

CREATE TABLE chat_procedures (
    procedure_id  TEXT NOT NULL,
    scope         TEXT NOT NULL,
    owner         TEXT NOT NULL,
    session_id    TEXT,
    person_id     TEXT,
    name          TEXT NOT NULL,
    description   TEXT NOT NULL,
    goal_contains TEXT NOT NULL,
    context_has   TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    content       TEXT NOT NULL,
    source        TEXT NOT NULL,
    active        BOOLEAN NOT NULL,
    used          BIGINT NOT NULL,
    succeeded     BIGINT NOT NULL,
    failed        BIGINT NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (procedure_id),
    FOREIGN KEY (person_id) REFERENCES chat_persons(person_id) ON DELETE CASCADE,
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK (((scope = 'session') = (session_id IS NOT NULL)) AND ((scope = 'user') = (person_id IS NOT NULL))),
    CHECK (scope IN ('session', 'workspace', 'user'))
);
CREATE UNIQUE INDEX idx_chat_procedures_name ON chat_procedures (scope, owner, name);
CREATE INDEX idx_chat_procedures_updated_at ON chat_procedures (updated_at, procedure_id);
CREATE INDEX idx_chat_procedures_session_id ON chat_procedures (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_procedures_person_id ON chat_procedures (person_id) WHERE person_id IS NOT NULL;

-- The outbox of answers, and the state of channels.

CREATE TABLE chat_outbox (
    number      BIGINT GENERATED ALWAYS AS IDENTITY,
    channel     TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    status      TEXT NOT NULL,
    content     TEXT,
    address     TEXT,
    parts_sent  BIGINT NOT NULL DEFAULT 0,
    tries       BIGINT NOT NULL DEFAULT 0,
    next_try_at TIMESTAMPTZ NOT NULL,
    owner       TEXT,
    owned_until TIMESTAMPTZ,
    uncertain   BOOLEAN NOT NULL DEFAULT FALSE,
    error       TEXT,
    created_at  TIMESTAMPTZ NOT NULL,
    ended_at    TIMESTAMPTZ,
    partial     TEXT,
    UNIQUE (session_id, channel, message_id),
    PRIMARY KEY (number),
    CHECK (status IN ('waiting', 'ready', 'delivered', 'failed', 'dropped', 'nothing'))
);
CREATE INDEX idx_chat_outbox_ready ON chat_outbox (session_id, number) WHERE (status = 'ready');
CREATE INDEX idx_chat_outbox_waiting ON chat_outbox (session_id) WHERE (status = 'waiting');
CREATE INDEX idx_chat_outbox_ended_at ON chat_outbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE chat_channel_sessions (
    session_id TEXT NOT NULL,
    channel    TEXT NOT NULL,
    address    TEXT NOT NULL,
    heard_at   TIMESTAMPTZ NOT NULL,
    sent       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id)
);

CREATE TABLE chat_channel_state (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    expires_at TIMESTAMPTZ,
    PRIMARY KEY (scope, name)
);

-- Graphiti: consents to send data, and deliveries.

CREATE TABLE chat_graph_consents (
    number       BIGINT GENERATED ALWAYS AS IDENTITY,
    version      BIGINT NOT NULL,
    endpoint     TEXT NOT NULL,
    data_classes TEXT NOT NULL,
    decision     TEXT NOT NULL,
    decided_by   TEXT NOT NULL,
    decided_at   TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (number),
    CHECK (decision IN ('granted', 'declined', 'withdrawn'))
);
CREATE INDEX idx_chat_graph_consents_endpoint ON chat_graph_consents (endpoint, number);

CREATE VIEW chat_graph_grants AS
 SELECT version,
    endpoint,
    data_classes
   FROM chat_graph_consents c
  WHERE decision = 'granted' AND NOT (EXISTS ( SELECT 1
           FROM chat_graph_consents n
          WHERE n.endpoint = c.endpoint AND n.number > c.number));

CREATE TABLE chat_graph_trust (
    workspace  TEXT NOT NULL,
    trusted_by TEXT NOT NULL,
    trusted_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (workspace)
);

CREATE TABLE chat_graph_turns (
    number     BIGINT GENERATED ALWAYS AS IDENTITY,
    session_id TEXT NOT NULL,
    first_seq  BIGINT NOT NULL,
    last_seq   BIGINT NOT NULL,
    workspace  TEXT,
    backfill   BOOLEAN NOT NULL DEFAULT FALSE,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (number),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);
CREATE INDEX idx_chat_graph_turns_session_id ON chat_graph_turns (session_id);

CREATE TABLE chat_graph_groups (
    group_key   TEXT NOT NULL,
    group_id    TEXT NOT NULL,
    scope       TEXT NOT NULL,
    owner       TEXT,
    owned_until TIMESTAMPTZ,
    next_try_at TIMESTAMPTZ NOT NULL,
    seen_at     TIMESTAMPTZ,
    failures    BIGINT NOT NULL DEFAULT 0,
    error       TEXT,
    UNIQUE (group_id),
    PRIMARY KEY (group_key),
    CHECK (scope IN ('session', 'workspace', 'user'))
);

CREATE TABLE chat_graph_deliveries (
    number     BIGINT GENERATED ALWAYS AS IDENTITY,
    group_id   TEXT NOT NULL,
    scope      TEXT NOT NULL,
    workspace  TEXT,
    turn       TEXT NOT NULL,
    name       TEXT NOT NULL,
    session_id TEXT,
    message_id TEXT,
    role       TEXT NOT NULL,
    content    TEXT,
    bytes      BIGINT NOT NULL,
    backfill   BOOLEAN NOT NULL DEFAULT FALSE,
    said_at    TIMESTAMPTZ NOT NULL,
    status     TEXT NOT NULL,
    reason     TEXT,
    attempts   BIGINT NOT NULL DEFAULT 0,
    repeats    BIGINT NOT NULL DEFAULT 0,
    created_at TIMESTAMPTZ NOT NULL,
    sent_at    TIMESTAMPTZ,
    ended_at   TIMESTAMPTZ,
    UNIQUE (group_id, name),
    PRIMARY KEY (number),
    FOREIGN KEY (group_id) REFERENCES chat_graph_groups(group_id) ON DELETE CASCADE,
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK (status IN ('queued', 'sent', 'confirmed', 'dead'))
);
CREATE INDEX idx_chat_graph_deliveries_open
ON chat_graph_deliveries (group_id, number)
WHERE status IN ('queued', 'sent');
CREATE INDEX idx_chat_graph_deliveries_dead ON chat_graph_deliveries (number) WHERE (status = 'dead');
CREATE INDEX idx_chat_graph_deliveries_session_id ON chat_graph_deliveries (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_graph_deliveries_backfill ON chat_graph_deliveries (workspace, sent_at) WHERE backfill;

CREATE TABLE chat_fact_proposals (
    proposal_id TEXT NOT NULL,
    scope       TEXT NOT NULL,
    owner       TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    person_id   TEXT,
    seq         BIGINT NOT NULL,
    run_id      TEXT,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    kind        TEXT,
    promoted    TEXT,
    confidence  DOUBLE PRECISION NOT NULL,
    learner     TEXT NOT NULL,
    status      TEXT NOT NULL,
    fact_id     TEXT,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    decided_by  TEXT,
    PRIMARY KEY (proposal_id),
    FOREIGN KEY (person_id) REFERENCES chat_persons(person_id) ON DELETE CASCADE,
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE,
    CHECK (scope IN ('session', 'workspace', 'user')),
    CHECK (status IN ('open', 'accepted', 'rejected', 'undone'))
);
CREATE INDEX idx_chat_fact_proposals_updated_at ON chat_fact_proposals (updated_at, proposal_id);
CREATE INDEX idx_chat_fact_proposals_key ON chat_fact_proposals (scope, owner, key);
CREATE INDEX idx_chat_fact_proposals_session_id ON chat_fact_proposals (session_id, status);
CREATE INDEX idx_chat_fact_proposals_person_id ON chat_fact_proposals (person_id) WHERE person_id IS NOT NULL;

CREATE TABLE chat_fact_learning (
    session_id TEXT NOT NULL,
    learner    TEXT NOT NULL,
    upto_seq   BIGINT NOT NULL,
    PRIMARY KEY (session_id, learner),
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);

CREATE TABLE chat_api_keys (
    key_id       TEXT NOT NULL,
    name         TEXT NOT NULL,
    digest       TEXT NOT NULL,
    scope        TEXT NOT NULL,
    user_id      TEXT,
    created_at   TIMESTAMPTZ NOT NULL,
    expires_at   TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ,
    UNIQUE (digest),
    PRIMARY KEY (key_id),
    CHECK (scope IN ('read', 'write', 'admin'))
);
