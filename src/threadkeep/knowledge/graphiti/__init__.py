"""Graphiti, an external knowledge graph: stored messages are queued and sent to it, and recall searches it.

A group is the part of the graph for one session, workspace or person. An episode is a message or a fact in a group.
"""
