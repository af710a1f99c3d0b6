-- Messages and the search index in less room.

-- Rows lie in the order in which they were stored, so that pages are full, and a long text takes what it needs: by
-- (session_id, seq) pages were split in the middle and each long row got one for itself. `document` is the row's number.
CREATE TABLE chat_messages_by_document (
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
    document   INTEGER PRIMARY KEY,
    UNIQUE (session_id, seq)
);

INSERT INTO chat_messages_by_document (
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at
)
SELECT
    session_id, seq, id, role, content, tokens, status, confidence, escalated, run_id, metadata, original, sent_at, created_at
FROM chat_messages
ORDER BY session_id, seq;

DROP TABLE chat_search;

DROP VIEW chat_search_texts;

DROP TABLE chat_search_documents;

DROP TABLE chat_messages;

ALTER TABLE chat_messages_by_document RENAME TO chat_messages;

CREATE UNIQUE INDEX idx_chat_messages_id ON chat_messages (session_id, id);

-- Which texts have a trigram, without the places in them: whether they follow each other there the text itself tells.
-- The view lends FTS5 the texts of what is indexed, which its own table of sizes knows.
CREATE VIRTUAL TABLE chat_search USING fts5 (
    content, content = 'chat_search_texts', content_rowid = 'document', tokenize = 'trigram', detail = none
);

CREATE VIEW chat_search_texts AS
    SELECT m.document, m.content FROM chat_search_docsize d JOIN chat_messages m ON m.document = d.id;

-- It is filled as after an import: beside the appends, and before a search.
UPDATE chat_sessions SET indexed_seq = archived_seq WHERE graph_version IS NULL AND indexed_seq > archived_seq;
