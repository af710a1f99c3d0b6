-- Columns and indexes that find the rows of the outbox and of the channels' sessions that name a person, for an erasure.

ALTER TABLE chat_outbox ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CASE WHEN json_valid(address) THEN address ->> 'user_id' END) VIRTUAL;
CREATE INDEX idx_chat_outbox_person_id ON chat_outbox (person_id) WHERE person_id IS NOT NULL;
ALTER TABLE chat_channel_sessions ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CASE WHEN json_valid(address) THEN address ->> 'user_id' END) VIRTUAL;
CREATE INDEX idx_chat_channel_sessions_person_id ON chat_channel_sessions (person_id) WHERE person_id IS NOT NULL;
