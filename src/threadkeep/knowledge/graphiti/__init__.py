"""Graphiti, an external knowledge graph, to which messages are sent and which recall searches.

A group is the part of the graph for one session, workspace or person. An episode is a message or a fact in a group.
"""
