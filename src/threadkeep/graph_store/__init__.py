"""Transcripts in a LangGraph store: one metadata item per conversation, and its messages in chunks.

A note is a small item with the `seq` of a message, which is found by the message's id or as the answer to a question.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` defines the keys of items, and
`shapes` their format. `items` has the interface to a store, and an implementation of it for LangGraph stores in
databases that Threadkeep opens; `foreign` implements it for any other store. `transcripts` implements the protocol with
these items, and `opening` opens a whole backend.
"""
