"""Transcripts in a LangGraph store: one metadata item per conversation, and its messages in chunks.

Notes are small items with the `seq` of a message, found by the message id or, for answers, by question and author.

This is the second implementation of `threadkeep.store.transcripts.Transcripts`. `layout` defines the keys of items, and
`shapes` their format. `items` has the interface to a store, and an implementation of it for LangGraph stores in
databases that Threadkeep opens; `foreign` implements it for any other store. `transcripts` implements the protocol with
these items, and `opening` opens a whole backend.
"""
