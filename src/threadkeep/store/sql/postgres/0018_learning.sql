-- Facts that were proposed from what people said, and the limit of backfill for a workspace.

-- Each comes from one message. `promoted` is the kind of a directive, NULL for a model's proposal. `fact_id` is the fact
-- that it became. A proposal goes with its session, and with its owner.
CREATE TABLE chat_fact_proposals (
    proposal_id TEXT PRIMARY KEY NOT NULL,
    scope       TEXT NOT NULL CHECK (scope IN ('session', 'workspace', 'user')),
    owner       TEXT NOT NULL,
    session_id  TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    person_id   TEXT REFERENCES chat_persons (person_id) ON DELETE CASCADE,
    seq         BIGINT NOT NULL,
    run_id      TEXT,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    kind        TEXT,
    promoted    TEXT,
    confidence  DOUBLE PRECISION NOT NULL,
    learner     TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('open', 'accepted', 'rejected', 'undone')),
    fact_id     TEXT,
    created_at  TIMESTAMPTZ NOT NULL,
    updated_at  TIMESTAMPTZ NOT NULL,
    decided_by  TEXT
);
CREATE INDEX idx_chat_fact_proposals_updated_at ON chat_fact_proposals (updated_at, proposal_id);
CREATE INDEX idx_chat_fact_proposals_key ON chat_fact_proposals (scope, owner, key);
CREATE INDEX idx_chat_fact_proposals_session_id ON chat_fact_proposals (session_id, status);
CREATE INDEX idx_chat_fact_proposals_person_id ON chat_fact_proposals (person_id) WHERE person_id IS NOT NULL;

-- How far a learner has read a session: each message is read once, in however many processes.
CREATE TABLE chat_fact_learning (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    learner    TEXT NOT NULL,
    upto_seq   BIGINT NOT NULL,
    PRIMARY KEY (session_id, learner)
);

CREATE INDEX idx_chat_graph_deliveries_backfill ON chat_graph_deliveries (workspace, sent_at) WHERE backfill;
