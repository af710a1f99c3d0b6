-- Records are compressed with zstd. Earlier versions cannot read them; they refuse to open a database of this schema.
SELECT 1;
