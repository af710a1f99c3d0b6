"""Workflows to read, run and change; `README.md` beside this says how."""
