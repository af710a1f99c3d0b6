-- Who said a message, what it answers, and whether a later one stands in its place.

-- `author` is a person's or an agent's name. `answers` is the id of the question that an answer belongs to, or of its run
-- where there is no question; `ordinal` counts the answers of one author to it (NULL: the first). `told_at` is when a
-- caller got the answer. A superseded message stays, out of every window.
ALTER TABLE chat_messages ADD COLUMN author TEXT;
ALTER TABLE chat_messages ADD COLUMN answers TEXT;
ALTER TABLE chat_messages ADD COLUMN ordinal BIGINT;
ALTER TABLE chat_messages ADD COLUMN told_at TIMESTAMPTZ;
ALTER TABLE chat_messages ADD COLUMN superseded_at TIMESTAMPTZ;
ALTER TABLE chat_messages ADD COLUMN superseded_by TEXT;

-- One complete answer of one author at one place of a run: the fence of processes that answer the same question.
CREATE UNIQUE INDEX idx_chat_messages_answer
ON chat_messages (session_id, answers, coalesce(author, ''), coalesce(ordinal, 1))
WHERE answers IS NOT NULL AND status = 'complete' AND superseded_at IS NULL;

-- `revision` is raised when messages are superseded. A branch names the session and the `seq` that it began at; `agent` is
-- set on the session that an agent keeps for itself below another one.
ALTER TABLE chat_sessions ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
ALTER TABLE chat_sessions ADD COLUMN parent_session_id TEXT;
ALTER TABLE chat_sessions ADD COLUMN parent_seq BIGINT;
ALTER TABLE chat_sessions ADD COLUMN agent TEXT;
CREATE INDEX idx_chat_sessions_parent ON chat_sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
