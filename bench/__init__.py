"""Repeatable measurements: Threadkeep beside raw SQL and beside the memories of other frameworks, in one run.

`python -m bench` measures; `contenders` says what takes part and `plan` how much of it is done. A contender is one file
of adapters; all of them store the same texts and are measured through their public interface.
"""
