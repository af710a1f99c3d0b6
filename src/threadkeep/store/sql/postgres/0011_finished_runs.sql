-- What finished turns leave behind takes little room: compact records of model calls.

-- Compact JSON, or JSON as it is where it was stored before.
ALTER TABLE chat_manifests ALTER COLUMN manifest TYPE BYTEA USING convert_to(CAST(manifest AS TEXT), 'UTF8');

ALTER TABLE chat_manifests DROP CONSTRAINT chat_manifests_pkey;

ALTER TABLE chat_manifests ADD PRIMARY KEY (run_id, session_id, call);

DROP INDEX idx_chat_manifests_run_id;

DROP INDEX idx_chat_manifests_session_id;

CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at);

ALTER TABLE chat_run_manifests ALTER COLUMN manifest TYPE BYTEA USING convert_to(CAST(manifest AS TEXT), 'UTF8');
