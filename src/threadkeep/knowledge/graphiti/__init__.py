"""Graphiti, an external graph: an outbox sends messages to it, and recall searches it."""
