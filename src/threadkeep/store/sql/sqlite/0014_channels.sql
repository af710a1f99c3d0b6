-- Answers on their way to people, and what channels remember.

-- One row for each message of a person and for each message that goes out by itself. `message_id` is the message that is
-- answered, or the one that goes out. An answer is `waiting` for the run of its message, and `ready` when that is over;
-- its text stays in the transcript. `content` is a text that is in no transcript. `uncertain` says that a process died
-- between sending a part and noting it. What is over keeps neither text nor address.
CREATE TABLE chat_outbox (
    number      INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    channel     TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    message_id  TEXT NOT NULL,
    status      TEXT NOT NULL CHECK (status IN ('waiting', 'ready', 'delivered', 'failed', 'dropped', 'nothing')),
    content     TEXT,
    address     TEXT,
    parts_sent  INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 0,
    next_try_at TEXT NOT NULL,
    owner       TEXT,
    owned_until TEXT,
    uncertain   INTEGER NOT NULL DEFAULT FALSE,
    error       TEXT,
    created_at  TEXT NOT NULL,
    ended_at    TEXT,
    UNIQUE (session_id, channel, message_id)
);
CREATE INDEX idx_chat_outbox_ready ON chat_outbox (session_id, number) WHERE status = 'ready';
CREATE INDEX idx_chat_outbox_waiting ON chat_outbox (session_id) WHERE status = 'waiting';
CREATE INDEX idx_chat_outbox_ended_at ON chat_outbox (ended_at) WHERE ended_at IS NOT NULL;

-- Where the person of a session is reached, when they were heard last, and how many messages they were sent since.
CREATE TABLE chat_channel_sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    channel    TEXT NOT NULL,
    address    TEXT NOT NULL,
    heard_at   TEXT NOT NULL,
    sent       INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Offsets, cursors, tokens and the ids that chats had before. `scope` is the bot, `name` says what the value is.
CREATE TABLE chat_channel_state (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    expires_at TEXT,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
