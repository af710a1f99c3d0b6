-- Keys of the HTTP service. `digest` is the SHA-256 of a random key, which is stored nowhere. A key with a `user_id` speaks
-- for that user only. Revoked keys stay: a service that ever had a key does not answer without one.
CREATE TABLE chat_api_keys (
    key_id       TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    digest       TEXT NOT NULL UNIQUE,
    scope        TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    user_id      TEXT,
    created_at   TIMESTAMPTZ NOT NULL,
    expires_at   TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ
);
