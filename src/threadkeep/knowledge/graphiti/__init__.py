"""Graphiti, an external knowledge graph. Messages are sent to it, and recall searches it.

A group is the part of the graph for one session, workspace or person. An episode is a message or a fact in a group.
"""
