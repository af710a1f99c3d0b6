"""What a workflow is: its definition in Python or YAML, its nodes, its templates, its keys, its picture.

A workflow is a LangGraph graph whose nodes use the memory. `document` is the shape of a YAML file and `nodes` are what
can stand in it; `reading`, `checking` and `building` make a graph of a file; `registry` has all workflows of a service
by their names. How they run, and go on after a crash, is not this room's business.
"""
