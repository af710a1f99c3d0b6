"""History: sessions and their keys, and everything derived from a transcript.

`Memory` opens sessions. A `Session` reads windows and appends turns; turns that cannot be written now are retried
(`pending`). Old messages are summarised (`compressor`), searched for each new input (`older_turns`), and archived or
deleted by rule (`retention`). Records of model calls (`manifests`) and the learned token factor of each model
(`memory_parts`) are also stored.
"""
