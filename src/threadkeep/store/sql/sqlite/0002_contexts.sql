-- What belongs to contexts: summaries, where windows begin, and the record of each model call. All of it goes with its
-- session.

-- Text that stands for the messages first_seq to last_seq. One that was taken up into another is kept, and says so.
CREATE TABLE chat_summaries (
    session_id     TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    id             TEXT NOT NULL,
    first_seq      INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL,
    level          INTEGER NOT NULL,
    text           TEXT NOT NULL,
    model          TEXT NOT NULL,
    prompt_version TEXT NOT NULL,
    tokens         INTEGER NOT NULL,
    superseded_by  TEXT,
    created_at     TEXT NOT NULL,
    PRIMARY KEY (session_id, id),
    CHECK (1 <= first_seq AND first_seq <= last_seq)
) WITHOUT ROWID;

CREATE UNIQUE INDEX idx_chat_summaries_active ON chat_summaries (session_id, first_seq) WHERE superseded_by IS NULL;

-- Where the window of one kind of agent begins; it moves forward only.
CREATE TABLE chat_anchors (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    profile    TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (session_id, profile)
) WITHOUT ROWID;

-- One row for each model call: what went in, by reference, and why the rest did not.
CREATE TABLE chat_manifests (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT NOT NULL,
    call       INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    manifest   TEXT NOT NULL,
    PRIMARY KEY (session_id, run_id, call)
) WITHOUT ROWID;

CREATE INDEX idx_chat_manifests_run_id ON chat_manifests (run_id);
CREATE INDEX idx_chat_manifests_session_id ON chat_manifests (session_id, created_at, run_id, call);
CREATE INDEX idx_chat_manifests_created_at ON chat_manifests (created_at);

-- What contexts held that is in no transcript, such as system prompts and tool results: once for each session. The
-- bytes are UTF-8: a text column would not keep every text as it was.
CREATE TABLE chat_context_texts (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    digest     TEXT NOT NULL,
    body       BLOB NOT NULL,
    used_at    TEXT NOT NULL,
    PRIMARY KEY (session_id, digest)
) WITHOUT ROWID;

CREATE INDEX idx_chat_context_texts_used_at ON chat_context_texts (used_at);

-- How a model's own count of tokens relates to the estimate.
CREATE TABLE chat_token_factors (
    model      TEXT PRIMARY KEY NOT NULL,
    factor     REAL NOT NULL,
    samples    INTEGER NOT NULL,
    updated_at TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE chat_embeddings (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    model      TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    vector     BLOB NOT NULL,
    PRIMARY KEY (session_id, model, seq)
) WITHOUT ROWID;

-- Who does some background work on a session, and until when nobody else begins it.
CREATE TABLE chat_claims (
    session_id    TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    purpose       TEXT NOT NULL,
    owner         TEXT NOT NULL,
    claimed_until TEXT NOT NULL,
    PRIMARY KEY (session_id, purpose)
) WITHOUT ROWID;
