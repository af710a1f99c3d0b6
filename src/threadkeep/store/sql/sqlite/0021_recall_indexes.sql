-- Indexes of long sessions for recall, so that a process does not make them again after its start.

CREATE TABLE chat_recall_indexes (
    session_id TEXT PRIMARY KEY REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    version    TEXT NOT NULL,
    last_seq   INTEGER NOT NULL,
    data       BLOB NOT NULL
);
