-- Recall indexes of long sessions, so that a process need not build them again after its start.

CREATE TABLE chat_recall_indexes (
    session_id TEXT PRIMARY KEY,
    version    TEXT NOT NULL,
    last_seq   BIGINT NOT NULL,
    data       BYTEA NOT NULL,
    FOREIGN KEY (session_id) REFERENCES chat_sessions(session_id) ON DELETE CASCADE
);
-- The data is compressed already.
ALTER TABLE chat_recall_indexes ALTER COLUMN data SET STORAGE EXTERNAL;
