"""Graphiti, an external graph: messages go there from an outbox, and recall searches it."""
