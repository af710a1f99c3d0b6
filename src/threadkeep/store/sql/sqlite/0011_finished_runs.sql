-- What finished turns leave behind takes little room: compact records of model calls.

-- `manifest` is compact JSON, or JSON as it is where it was stored before. `created_at` is in microseconds since 1970.
CREATE TABLE chat_compact_manifests (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, session_id, call)
);

INSERT INTO chat_compact_manifests (session_id, run_id, call, created_at, manifest)
SELECT
    session_id, run_id, call,
    CAST(strftime('%s', created_at) AS INTEGER) * 1000000 + CAST(substr(created_at, 21, 6) AS INTEGER),
    CAST(manifest AS BLOB)
FROM chat_manifests
ORDER BY created_at, run_id, call;

DROP TABLE chat_manifests;

ALTER TABLE chat_compact_manifests RENAME TO chat_manifests;

CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);
CREATE INDEX idx_chat_manifests_created_at ON chat_manifests (created_at);

CREATE TABLE chat_compact_run_manifests (
    run_id     TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    call       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    manifest   BLOB NOT NULL,
    PRIMARY KEY (run_id, call)
);

INSERT INTO chat_compact_run_manifests (run_id, call, created_at, manifest)
SELECT
    run_id, call,
    CAST(strftime('%s', created_at) AS INTEGER) * 1000000 + CAST(substr(created_at, 21, 6) AS INTEGER),
    CAST(manifest AS BLOB)
FROM chat_run_manifests
ORDER BY created_at, run_id, call;

DROP TABLE chat_run_manifests;

ALTER TABLE chat_compact_run_manifests RENAME TO chat_run_manifests;

CREATE INDEX idx_chat_run_manifests_created_at ON chat_run_manifests (created_at);
