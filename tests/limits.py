"""The timeout of every wait for a condition: it ends a hanging test, and is long enough for a busy machine."""

HANG_SECONDS = 300.0
