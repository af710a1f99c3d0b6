-- Indexes that find the evidence of facts by session and by run, and the open answers of a channel.

CREATE INDEX idx_chat_fact_evidence_session_id ON chat_fact_evidence (session_id, seq);
CREATE INDEX idx_chat_fact_evidence_run_id ON chat_fact_evidence (run_id);
CREATE INDEX idx_chat_outbox_open ON chat_outbox (channel, created_at) WHERE status IN ('waiting', 'ready', 'failed');
