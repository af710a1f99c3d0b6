-- Indexes for pages of runs by status. Few runs are not done, so they are small. The index without_answer is not used any
-- more. It stays, because DROP INDEX on PostgreSQL would wait for all readers of the table, and new readers would wait too.

CREATE INDEX idx_chat_runs_status ON chat_runs (status, created_at, run_id)
WHERE status IN ('waiting', 'failed', 'cancelled', 'interrupted');
CREATE INDEX idx_chat_runs_session_status ON chat_runs (session_id, status, created_at, run_id)
WHERE status IN ('waiting', 'failed', 'cancelled', 'interrupted');
CREATE INDEX idx_chat_runs_user_status ON chat_runs (user_id, status, created_at, run_id)
WHERE status IN ('waiting', 'failed', 'cancelled', 'interrupted');
