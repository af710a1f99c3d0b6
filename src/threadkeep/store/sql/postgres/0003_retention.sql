-- How long messages stay: what is archived, what is deleted, and who sees to it.

-- Messages up to deleted_seq are gone; those up to archived_seq, which is never behind it, are in no window and no search.
ALTER TABLE chat_sessions ADD COLUMN archived_seq BIGINT NOT NULL DEFAULT 0;

ALTER TABLE chat_sessions ADD COLUMN deleted_seq BIGINT NOT NULL DEFAULT 0;

-- The session's own limits as JSON; NULL where the rules of the settings are its too.
ALTER TABLE chat_sessions ADD COLUMN retention JSON;

CREATE INDEX idx_chat_sessions_retention ON chat_sessions (session_id) WHERE retention IS NOT NULL;

-- Ids of deleted messages that their platform may still send again.
CREATE TABLE chat_deleted_ids (
    session_id TEXT NOT NULL REFERENCES chat_sessions (session_id) ON DELETE CASCADE,
    id         TEXT NOT NULL,
    seq        BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, id)
);

CREATE INDEX idx_chat_deleted_ids_created_at ON chat_deleted_ids (created_at);

-- What one process at a time does for all sessions: who has it, until when nobody else begins it, when it was last done.
CREATE TABLE chat_duties (
    duty          TEXT PRIMARY KEY,
    owner         TEXT,
    claimed_until TIMESTAMPTZ NOT NULL,
    done_at       TIMESTAMPTZ
);
