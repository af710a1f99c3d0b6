"""Engines that execute runs: an engine on dbos for many processes, and an engine for this process alone."""
