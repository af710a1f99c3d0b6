"""WHAT WAS SAID: sessions and their keys, and all that is made of a transcript.

`Memory` opens sessions, and a `Session` reads windows and appends turns; those that the database does not take wait
(`pending`). What is old becomes summaries (`compressor`), is found again when it matters (`older_turns`), and is
archived or deleted by rule (`retention`). The records of model calls (`manifests`) and what was learned of models'
tokens (`learned_factors`) are kept beside it.
"""
