-- Models of unknown families have a second factor, for scripts other than Latin. NULL: the first one is that of all.

ALTER TABLE chat_token_factors ADD COLUMN other_factor REAL;
