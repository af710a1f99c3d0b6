-- Recall indexes of long sessions, so that a process need not build them again after its start.

CREATE TABLE chat_recall_indexes (
    session_id TEXT PRIMARY KEY REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    version    TEXT NOT NULL,
    last_seq   INTEGER NOT NULL,
    data       BLOB NOT NULL
);
