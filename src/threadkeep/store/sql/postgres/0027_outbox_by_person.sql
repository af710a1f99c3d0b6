-- Columns and indexes that find the rows of the outbox and of the channels' sessions that name a person, for an erasure.
-- The expression accepts every text, because one damaged address must not stop the migration. A hash index has no limit
-- for the length of a platform's ids.

ALTER TABLE chat_outbox ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CAST('[' || substring(address, '"user_id":("([^"\\]|\\.)*")') || ']' AS JSON) ->> 0) STORED;
CREATE INDEX idx_chat_outbox_person_id ON chat_outbox USING hash (person_id) WHERE person_id IS NOT NULL;
ALTER TABLE chat_channel_sessions ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CAST('[' || substring(address, '"user_id":("([^"\\]|\\.)*")') || ']' AS JSON) ->> 0) STORED;
CREATE INDEX idx_chat_channel_sessions_person_id ON chat_channel_sessions USING hash (person_id) WHERE person_id IS NOT NULL;
