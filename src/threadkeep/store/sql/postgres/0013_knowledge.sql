-- Knowledge that outlives a session: persons, facts and procedures.

-- One row for each id under which somebody is known. `canonical_id` is the id that stands for the person: the row's own,
-- or the one at the end of the chain of `merged_into`.
CREATE TABLE chat_persons (
    person_id     TEXT PRIMARY KEY NOT NULL,
    canonical_id  TEXT NOT NULL,
    merged_into   TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    first_seen_at TIMESTAMPTZ NOT NULL,
    last_seen_at  TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_chat_persons_canonical_id ON chat_persons (canonical_id);
CREATE INDEX idx_chat_persons_merged_into ON chat_persons (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX idx_chat_persons_last_seen_at ON chat_persons (last_seen_at, person_id);

CREATE TABLE chat_person_names (
    person_id    TEXT NOT NULL REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    name         TEXT NOT NULL,
    last_seen_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (person_id, name)
);

-- `session_id` and `person_id` repeat the owner of a fact of that scope: a fact goes with its owner.
CREATE TABLE chat_facts (
    fact_id      TEXT PRIMARY KEY NOT NULL,
    scope        TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner        TEXT NOT NULL,
    session_id   TEXT REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    person_id    TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    key          TEXT NOT NULL,
    value        TEXT NOT NULL,
    kind         TEXT NOT NULL,
    confidence   DOUBLE PRECISION NOT NULL,
    confirmed    BIGINT NOT NULL,
    contradicted BIGINT NOT NULL,
    valid_from   TIMESTAMPTZ NOT NULL,
    valid_to     TIMESTAMPTZ,
    updated_at   TIMESTAMPTZ NOT NULL,
    CHECK ((scope = 'session') = (session_id IS NOT NULL) AND (scope = 'user') = (person_id IS NOT NULL))
);
CREATE UNIQUE INDEX idx_chat_facts_valid ON chat_facts (scope, owner, key) WHERE valid_to IS NULL;
CREATE INDEX idx_chat_facts_key ON chat_facts (scope, owner, key, valid_from);
CREATE INDEX idx_chat_facts_updated_at ON chat_facts (updated_at, fact_id);
CREATE INDEX idx_chat_facts_session_id ON chat_facts (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_facts_person_id ON chat_facts (person_id) WHERE person_id IS NOT NULL;

-- The origins of a fact, each once.
CREATE TABLE chat_fact_evidence (
    fact_id    TEXT NOT NULL REFERENCES chat_facts (fact_id) ON DELETE CASCADE,
    session_id TEXT,
    seq        BIGINT,
    run_id     TEXT,
    noted_at   TIMESTAMPTZ NOT NULL
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
    active        BOOLEAN NOT NULL,
    used          BIGINT NOT NULL,
    succeeded     BIGINT NOT NULL,
    failed        BIGINT NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL,
    CHECK ((scope = 'session') = (session_id IS NOT NULL) AND (scope = 'user') = (person_id IS NOT NULL))
);
CREATE UNIQUE INDEX idx_chat_procedures_name ON chat_procedures (scope, owner, name);
CREATE INDEX idx_chat_procedures_updated_at ON chat_procedures (updated_at, procedure_id);
CREATE INDEX idx_chat_procedures_session_id ON chat_procedures (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idx_chat_procedures_person_id ON chat_procedures (person_id) WHERE person_id IS NOT NULL;
