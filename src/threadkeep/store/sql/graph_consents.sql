-- Consents to send data to Graphiti.

-- name: decide
INSERT INTO chat_graph_consents (version, endpoint, data_classes, decision, decided_by, decided_at)
VALUES (:version, :endpoint, :data_classes, :decision, :decided_by, :now)

-- name: decisions
-- The newest decisions, newest first.
SELECT version, endpoint, data_classes, decision, decided_by, decided_at FROM chat_graph_consents
ORDER BY number DESC
LIMIT :limit

-- name: granted
-- The kinds of data that may be sent to an endpoint, and the time of the newest decision about this endpoint.
SELECT g.data_classes, (SELECT max(c.decided_at) FROM chat_graph_consents c WHERE c.endpoint = g.endpoint)
FROM chat_graph_grants g
WHERE g.endpoint = :endpoint AND g.version = :version

-- name: trust
INSERT INTO chat_graph_trust (workspace, trusted_by, trusted_at) VALUES (:workspace, :trusted_by, :now)
ON CONFLICT (workspace) DO NOTHING

-- name: distrust
DELETE FROM chat_graph_trust WHERE workspace = :workspace

-- name: trusted
SELECT workspace FROM chat_graph_trust ORDER BY workspace

-- name: is_trusted
SELECT trusted_at FROM chat_graph_trust WHERE workspace = coalesce(CAST(:workspace AS TEXT), '')
