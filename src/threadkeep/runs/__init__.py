"""Execution of runs, in this process or another one. If a process dies, another one continues its runs."""
