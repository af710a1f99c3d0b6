"""Engines that execute runs: with dbos in many processes, or in this process alone."""
