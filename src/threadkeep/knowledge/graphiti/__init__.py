"""Graphiti: an external graph that is fed from an outbox, and asked at recall."""
