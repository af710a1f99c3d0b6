"""Execution of runs in this process or another one. A run survives the death of the process that executes it."""
