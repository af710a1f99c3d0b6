-- Sessions, their messages, the runs that answered them, and the search index.

-- One row a session. last_seq numbers the messages; last_user_seq and reset_seq keep windows bounded;
-- indexed_seq says how far the search index has come. Half-empty pages leave room for in-place updates.
CREATE TABLE chat_sessions (
    session_id    TEXT PRIMARY KEY,
    user_id       TEXT,
    title         TEXT,
    last_message  TEXT,
    message_count INTEGER NOT NULL DEFAULT 0,
    last_seq      BIGINT NOT NULL DEFAULT 0,
    last_user_seq BIGINT NOT NULL DEFAULT 0,
    reset_seq     BIGINT NOT NULL DEFAULT 0,
    indexed_seq   BIGINT NOT NULL DEFAULT 0,
    active        BOOLEAN NOT NULL DEFAULT TRUE,
    tags          JSONB NOT NULL DEFAULT '[]',
    metadata      JSONB NOT NULL DEFAULT '{}',
    created_at    TIMESTAMPTZ NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX idx_chat_sessions_updated_at ON chat_sessions (updated_at, session_id);
CREATE INDEX idx_chat_sessions_user_id ON chat_sessions (user_id, updated_at, session_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_sessions_to_index ON chat_sessions (session_id) WHERE indexed_seq < last_seq;

CREATE TABLE chat_messages (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    seq        BIGINT NOT NULL,
    id         TEXT NOT NULL,
    role       TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system')),
    content    TEXT NOT NULL,
    tokens     BIGINT NOT NULL,
    status     TEXT NOT NULL DEFAULT 'complete' CHECK (status IN ('complete', 'interrupted', 'failed')),
    confidence DOUBLE PRECISION,
    escalated  BOOLEAN NOT NULL DEFAULT FALSE,
    run_id     TEXT,
    metadata   JSONB NOT NULL DEFAULT '{}',
    original   JSON,
    sent_at    TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, seq)
);

CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);

-- One row for each request that named its message: who answers it, and the answer.
CREATE TABLE chat_runs (
    run_id       TEXT PRIMARY KEY,
    session_id   TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    workflow     TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', 'interrupted')),
    owner        TEXT NOT NULL,
    result       JSON,
    error        TEXT,
    started_at   TIMESTAMPTZ NOT NULL,
    heartbeat_at TIMESTAMPTZ NOT NULL,
    ended_at     TIMESTAMPTZ
);

CREATE UNIQUE INDEX idx_chat_runs_message_id ON chat_runs (session_id, message_id);

-- Full text by words, and by pairs of characters for scripts that write no spaces; the pairs are cut by the indexer,
-- so that a stock server finds Chinese without an extension.
CREATE TABLE chat_search (
    session_id TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    terms      TSVECTOR NOT NULL,
    PRIMARY KEY (session_id, seq)
);

CREATE INDEX idx_chat_search_terms ON chat_search USING gin (terms);
