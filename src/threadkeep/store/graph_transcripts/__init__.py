"""Transcripts in a LangGraph store: a metadata item for each conversation, and its messages in chunks.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` and `chunks` define the keys,
`shapes` the format of items. `items` is the interface of a store, `foreign` and `table` implement it; `transcripts` is
the contract on top.
"""
