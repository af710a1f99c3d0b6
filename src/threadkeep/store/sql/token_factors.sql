-- Token factors: by model, the ratio of reported tokens to estimated tokens.

-- name: all
SELECT model, factor, samples, other_factor FROM chat_token_factors

-- name: save
INSERT INTO chat_token_factors (model, factor, samples, updated_at, other_factor)
VALUES (:model, :factor, :samples, :now, :other_factor)
ON CONFLICT (model) DO UPDATE
SET factor = excluded.factor, samples = excluded.samples, updated_at = excluded.updated_at,
    other_factor = excluded.other_factor
