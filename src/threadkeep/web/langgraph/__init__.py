"""The API of LangGraph's server, for its SDKs and chat pages: sessions are threads, workflows are assistants.

Threadkeep stores a transcript instead of a graph's state. So `values` has one key, `messages`, and a thread has one
checkpoint for each turn. Runs are the runs of `threadkeep.runs`.
"""
