"""A graph that asks a person two questions."""

from __future__ import annotations

from tests.runs.desk import asking_twice

graph = asking_twice().builder
