-- The records of model calls in runs that belong to no session, and what those calls were sent: they go with their run.

CREATE TABLE chat_run_manifests (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    call       INTEGER NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    manifest   JSON NOT NULL,
    PRIMARY KEY (run_id, call)
);

CREATE INDEX idx_chat_run_manifests_created_at ON chat_run_manifests (created_at);

-- Once for each run. The bytes are UTF-8: a text column would not keep every text as it was.
CREATE TABLE chat_run_texts (
    run_id  TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    digest  TEXT NOT NULL,
    body    BYTEA NOT NULL,
    used_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (run_id, digest)
);

CREATE INDEX idx_chat_run_texts_used_at ON chat_run_texts (used_at);
