-- Models of unknown families have a second factor, for non-Latin scripts. NULL: the first factor is for all scripts.

ALTER TABLE chat_token_factors ADD COLUMN other_factor REAL;
