"""History: sessions and their keys, and everything derived from a transcript.

`Memory` opens sessions. A `Session` reads windows and appends turns; turns that cannot be written now are retried
(`pending`). Old messages become summaries (`compressor`), are found again when they matter (`older_turns`), and are
archived or deleted by rule (`retention`). Records of model calls (`manifests`) and learned token factors of models
(`memory_parts`) are stored as well.
"""
