-- Token factors: the ratio of models' own counts to the estimate.

-- name: all
SELECT model, factor, samples FROM chat_token_factors

-- name: save
INSERT INTO chat_token_factors (model, factor, samples, updated_at)
VALUES (:model, :factor, :samples, :now)
ON CONFLICT (model) DO UPDATE
SET factor = excluded.factor, samples = excluded.samples, updated_at = excluded.updated_at
