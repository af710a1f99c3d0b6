-- Values that expire are found without reading the others of their scope.

CREATE INDEX chat_channel_state_expires ON chat_channel_state (scope, expires_at) WHERE expires_at IS NOT NULL;
