"""History: sessions and everything derived from a transcript.

`Memory` opens sessions. A `Session` reads windows and appends turns; turns that cannot be written now are retried
(`pending`). Old messages are summarised (`compressor`), searched (`older_turns`), and archived or deleted by rule
(`retention`).
"""
