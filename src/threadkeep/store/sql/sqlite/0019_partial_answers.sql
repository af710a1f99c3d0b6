-- The text of an answer so far, for platforms that ask for it again and again while it grows: any process may be asked.
ALTER TABLE chat_outbox ADD COLUMN partial TEXT;
