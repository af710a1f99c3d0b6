-- What finished turns leave behind takes little room: compact records of model calls, the trace of a run in one row, what
-- was asked by reference.

-- Compact JSON, or JSON as it is where it was stored before.
ALTER TABLE chat_manifests ALTER COLUMN manifest TYPE BYTEA USING convert_to(CAST(manifest AS TEXT), 'UTF8');

ALTER TABLE chat_manifests DROP CONSTRAINT chat_manifests_pkey;

ALTER TABLE chat_manifests ADD PRIMARY KEY (run_id, session_id, call);

DROP INDEX idx_chat_manifests_run_id;

DROP INDEX idx_chat_manifests_session_id;

CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);

ALTER TABLE chat_run_manifests ALTER COLUMN manifest TYPE BYTEA USING convert_to(CAST(manifest AS TEXT), 'UTF8');

-- The events of a run that is over, as compact JSON, and what its model calls took: what is in these is in no other row.
ALTER TABLE chat_run_traces ADD COLUMN events BYTEA;

ALTER TABLE chat_run_traces ADD COLUMN usage TEXT;

ALTER TABLE chat_runs
    ALTER COLUMN result TYPE BYTEA USING convert_to(CAST(result AS TEXT), 'UTF8'),
    ALTER COLUMN input TYPE BYTEA USING convert_to(CAST(input AS TEXT), 'UTF8');

DROP INDEX idx_chat_runs_created_at;

DROP INDEX idx_chat_runs_user_id;

CREATE INDEX idx_chat_runs_created_at ON chat_runs (created_at);
CREATE INDEX idx_chat_runs_user_id ON chat_runs (user_id, created_at) WHERE user_id IS NOT NULL;
