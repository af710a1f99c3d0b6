"""Engines that execute runs: one with the library dbos, for several processes, and one for a database in memory."""
