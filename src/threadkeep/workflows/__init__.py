"""Workflows: their definitions in Python or YAML, their nodes, and drawings of them.

A workflow is a LangGraph graph with nodes that use the memory. `document` is the schema of a YAML file, and `nodes` are
its building blocks. `yaml_source`, `loading` and `building` turn a file into a graph. `registry` contains all workflows
of a service. `threadkeep.runs` executes workflows and recovers runs.
"""
