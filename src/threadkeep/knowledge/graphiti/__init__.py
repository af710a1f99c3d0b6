"""Graphiti, an external knowledge graph: stored messages are queued and sent to it, and recall searches it."""
