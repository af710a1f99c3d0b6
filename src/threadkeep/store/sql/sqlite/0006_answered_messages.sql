-- Messages whose runs are no longer kept: sent again, they are not answered twice.

-- What a run leaves behind, without a word of what was said. It goes with the message, or its session.
CREATE TABLE chat_answered_messages (
    session_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('done', 'cancelled')),
    user_id    TEXT,
    trigger    TEXT NOT NULL,
    created_at TEXT NOT NULL,
    ended_at   TEXT NOT NULL,
    PRIMARY KEY (session_id, message_id)
) WITHOUT ROWID;

CREATE INDEX idx_chat_answered_messages_run_id ON chat_answered_messages (run_id);
