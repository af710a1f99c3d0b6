-- Sessions whose messages are in a graph store. Their rows here, and those of their messages, are an index of it without
-- any text: what is derived from sessions hangs on them.

-- Which version of the conversation the rows follow; NULL where the messages themselves are here.
ALTER TABLE chat_sessions ADD COLUMN graph_version BIGINT;

CREATE INDEX idx_chat_sessions_graph_version ON chat_sessions (session_id) WHERE graph_version IS NOT NULL;
