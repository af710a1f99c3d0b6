"""Transcripts in a LangGraph store: one metadata item per conversation, and its messages in chunks.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` defines the keys, `shapes` the
format of items. `items` is the interface to a store, and its implementation for stores in Threadkeep's databases;
`foreign` implements the interface for any store. `transcripts` implements the protocol with these items, and `opening`
opens a whole backend.
"""
