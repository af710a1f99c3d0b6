"""Execution of runs, in this process or in other processes. If a process dies, another process continues its runs."""
