-- Turns of conversations that agents keep under keys of their own begin one after the other, as turns of sessions do.

-- `place` is a conversation: a session id, or a digest where no session has the id. `arrival` is the order of its turns;
-- those of sessions stand in chat_runs.
CREATE TABLE chat_run_places (
    place   TEXT NOT NULL,
    run_id  TEXT NOT NULL REFERENCES chat_runs (run_id) ON DELETE CASCADE,
    arrival INTEGER NOT NULL,
    PRIMARY KEY (place, arrival)
) WITHOUT ROWID;
CREATE UNIQUE INDEX idx_chat_run_places_run_id ON chat_run_places (run_id, place);

-- Each run with the runs before it that are queued or at work. A migration that makes chat_runs anew drops it first.
CREATE VIEW chat_runs_before (run_id, before_run_id) AS
SELECT r.run_id, o.run_id
FROM chat_runs r JOIN chat_runs o ON o.session_id = r.session_id AND o.arrival < r.arrival
WHERE o.status IN ('queued', 'running')
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_run_places r
JOIN chat_run_places p ON p.place = r.place AND p.arrival < r.arrival
JOIN chat_runs o ON o.run_id = p.run_id
WHERE o.status IN ('queued', 'running')
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_run_places r JOIN chat_runs o ON o.session_id = r.place AND o.arrival < r.arrival
WHERE o.status IN ('queued', 'running') AND o.run_id <> r.run_id
UNION ALL
SELECT r.run_id, o.run_id
FROM chat_runs r
JOIN chat_run_places p ON p.place = r.session_id AND p.arrival < r.arrival
JOIN chat_runs o ON o.run_id = p.run_id
WHERE o.status IN ('queued', 'running') AND o.run_id <> r.run_id;
