-- Runs that a person has to see to are found without looking at all others.

CREATE INDEX idx_chat_runs_waiting ON chat_runs (created_at, run_id) WHERE status = 'waiting';
CREATE INDEX idx_chat_runs_set_aside ON chat_runs (created_at, run_id) WHERE set_aside;
