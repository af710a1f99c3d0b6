"""Transcripts in a LangGraph store: a metadata item for each conversation, and its messages in chunks.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` defines the keys, `shapes` the
format of items. `items` is the interface of a store and its implementation on our databases; `foreign` implements the
interface for any store. `transcripts` implements the contract with these items, and `opening` opens everything.
"""
