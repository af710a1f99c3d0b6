-- Damage that SQLite finds in its file; one row of 'ok' if there is none.

-- name: damage
SELECT quick_check FROM pragma_quick_check
UNION ALL SELECT 'a row of ' || "table" || ' belongs to no row of ' || parent FROM pragma_foreign_key_check LIMIT 20
