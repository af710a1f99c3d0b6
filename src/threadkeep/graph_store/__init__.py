"""Transcripts in a LangGraph store: one metadata item per conversation, and its messages in chunks.

A note is a small item with the `seq` of a message; its key is made from the message's id or the answered question.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`; it is in `transcripts`, and `opening`
opens a whole backend. `layout` defines the keys of items, and `shapes` their format. `items` accesses the stores that
Threadkeep opens in databases, and `foreign` any other store.
"""
