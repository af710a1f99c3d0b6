"""Engines that execute runs: an engine on dbos for several processes, and an engine for a database in memory."""
