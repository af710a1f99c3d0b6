"""Engines that execute runs: dbos for many processes, or this process alone."""
