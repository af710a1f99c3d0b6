-- The search index in less room.

-- The number of a row, by which the search index refers to it.
ALTER TABLE chat_messages ADD COLUMN document BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE;

DROP TABLE chat_search;

-- Fingerprints of the words of a text, and of its pairs of characters where it is written without spaces: two bytes
-- each. That a text has them all says that it may have the words; the text itself tells.
CREATE TABLE chat_search (
    document BIGINT PRIMARY KEY,
    terms    SMALLINT[] NOT NULL
);

-- In kB: what waits to be sorted in is read by every search, and its room is not given back.
CREATE INDEX idx_chat_search_terms ON chat_search USING gin (terms) WITH (gin_pending_list_limit = 512);

-- It is filled as after an import: beside the appends, and before a search.
UPDATE chat_sessions SET indexed_seq = archived_seq WHERE graph_version IS NULL AND indexed_seq > archived_seq;
