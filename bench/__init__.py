"""Repeatable measurements that compare Threadkeep with raw SQL and with the memories of other frameworks, in one run.

`python -m bench` measures; `contenders` lists the participants and `plan` the amount of work. The adapters of a
contender are in files of their own. All contenders store the same texts and are measured through public interfaces.
"""
