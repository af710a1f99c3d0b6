"""Repeatable measurements that compare Threadkeep with raw SQL and with the memories of other frameworks, in one run.

`python -m bench` measures; `contenders` lists the participants and `plan` the amount of work. A contender is one file
of adapters; all of them store the same texts and are measured through their public interface.
"""
