-- The tool calls and results of the newest turns, which agents with tools are shown again.

-- `seq` is the place of the question, `author` the agent ('' for one without a name), `ordinal` counts its answers to the
-- question from 1. `body` is a list of LangChain messages as compact JSON.
CREATE TABLE chat_steps (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    author     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (session_id, author, seq, ordinal)
) WITHOUT ROWID;
