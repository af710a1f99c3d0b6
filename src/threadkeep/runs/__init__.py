"""Execution of runs, in this process or in others. If a process dies, another process continues its runs."""
