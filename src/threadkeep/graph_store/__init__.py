"""Transcripts in a LangGraph store: one metadata item per conversation, and its messages in chunks.

Notes are small items by which messages are found without reading all chunks. A note has the `seq` of a message. Its key
is made from the message's id, or from the question that the message answers.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`; it is in `transcripts`, and `opening`
opens a whole backend. `layout` defines the keys of items, and `shapes` their format. `items` accesses the stores that
Threadkeep opens in databases, and `foreign` any other store.
"""
