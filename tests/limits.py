"""The limit of every wait for a condition: it ends tests that hang, and is never reached on a machine that is busy."""

HANG_SECONDS = 300.0
