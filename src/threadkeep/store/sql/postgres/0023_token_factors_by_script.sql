-- Models of unknown families may have a second factor for non-Latin scripts. Without it, the first is for all scripts.

ALTER TABLE chat_token_factors ADD COLUMN other_factor DOUBLE PRECISION;
