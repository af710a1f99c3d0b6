-- Columns and indexes that find the rows of the outbox and of the channels' sessions that name a person, for an erasure.
-- The pattern finds only JSON that PostgreSQL can read, because one damaged address must not stop the migration. A hash
-- index has no limit for the length of a platform's ids.

ALTER TABLE chat_outbox ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CAST('[' || substring(address, '"user_id":("([^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4})*")') || ']' AS JSON) ->> 0) STORED;
CREATE INDEX idx_chat_outbox_person_id ON chat_outbox USING hash (person_id) WHERE person_id IS NOT NULL;
ALTER TABLE chat_channel_sessions ADD COLUMN person_id TEXT
GENERATED ALWAYS AS (CAST('[' || substring(address, '"user_id":("([^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u(?!0000|[dD][89a-fA-F])[0-9a-fA-F]{4})*")') || ']' AS JSON) ->> 0) STORED;
CREATE INDEX idx_chat_channel_sessions_person_id ON chat_channel_sessions USING hash (person_id) WHERE person_id IS NOT NULL;
