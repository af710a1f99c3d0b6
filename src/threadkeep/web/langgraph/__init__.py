"""The API of LangGraph's server, for its SDKs and chat pages: sessions are threads, workflows are assistants.

Threadkeep keeps a transcript per session and no state, so that `values` has one key, `messages`, and a thread has one
checkpoint for each turn. Runs are the runs of `threadkeep.runs`.
"""
