-- An index that finds expired values without reading the other values of their scope.

CREATE INDEX chat_channel_state_expires ON chat_channel_state (scope, expires_at) WHERE expires_at IS NOT NULL;
