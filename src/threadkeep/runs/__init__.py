"""Execution of runs, in this process or another one, also after a process dies while it executes them."""
