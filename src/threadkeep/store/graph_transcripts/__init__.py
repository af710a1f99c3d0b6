"""Transcripts in a LangGraph store: a metadata item for each conversation, and its messages in chunks.

The second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` and `chunks` say where what is kept
and `shapes` what it looks like; `items` is what is asked of a store, `foreign` and `table` are the stores that there
are; `transcripts` is the contract on top.
"""
