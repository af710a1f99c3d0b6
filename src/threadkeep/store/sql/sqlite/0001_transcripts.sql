-- Sessions, their messages, the runs that answered them, and the search index.

-- One row a session. last_seq numbers the messages; last_user_seq and reset_seq keep windows bounded;
-- indexed_seq says how far the search index has come.
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
    updated_at    TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX idx_chat_sessions_updated_at ON chat_sessions (updated_at, session_id);
CREATE INDEX idx_chat_sessions_user_id ON chat_sessions (user_id, updated_at, session_id) WHERE user_id IS NOT NULL;
CREATE INDEX idx_chat_sessions_to_index ON chat_sessions (session_id) WHERE indexed_seq < last_seq;

-- Clustered by (session_id, seq): the newest messages of a session lie side by side.
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
    PRIMARY KEY (session_id, seq)
) WITHOUT ROWID;

CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);

-- One row for each request that named its message: who answers it, and the answer.
CREATE TABLE chat_runs (
    run_id       TEXT PRIMARY KEY,
    session_id   TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    workflow     TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', 'interrupted')),
    owner        TEXT NOT NULL,
    result       TEXT,
    error        TEXT,
    started_at   TEXT NOT NULL,
    heartbeat_at TEXT NOT NULL,
    ended_at     TEXT
) WITHOUT ROWID;

CREATE UNIQUE INDEX idx_chat_runs_message_id ON chat_runs (session_id, message_id);

-- Full text by trigrams. The text itself stays in chat_messages alone: the view lends it to FTS5.
CREATE TABLE chat_search_documents (
    document   INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    UNIQUE (session_id, seq)
);

CREATE VIEW chat_search_texts AS
    SELECT d.document, m.content
    FROM chat_search_documents d JOIN chat_messages m ON m.session_id = d.session_id AND m.seq = d.seq;

CREATE VIRTUAL TABLE chat_search USING fts5 (
    content, content = 'chat_search_texts', content_rowid = 'document', tokenize = 'trigram'
);
