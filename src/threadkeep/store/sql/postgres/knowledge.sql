-- Locks of persons and facts. On SQLite the write lock of a transaction is enough.

-- name: lock_key
-- Lock a key against other writers. A row lock is not enough: the first fact has no row yet.
SELECT pg_advisory_xact_lock(hashtextextended(:scope || ' ' || :owner || ' ' || :key, 0))

-- name: lock_merges
-- Lock the merging, unmerging and deleting of persons. The number is arbitrary; it identifies the lock.
SELECT pg_advisory_xact_lock(7310865114)

-- name: lock_turns
-- Lock the creation of deliveries, so that they are created in order.
SELECT pg_advisory_xact_lock(7310865115)

-- name: lock_backfill
-- Lock the marking of backfilled messages as sent, so that all processes share one rate limit.
SELECT pg_advisory_xact_lock(7310865116)
