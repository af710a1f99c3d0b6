-- Models of unknown families have a second factor, for non-Latin scripts. If it is NULL, the first is for all.

ALTER TABLE chat_token_factors ADD COLUMN other_factor DOUBLE PRECISION;
