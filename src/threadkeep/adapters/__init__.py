"""Adapters that present sessions through other frameworks' interfaces; each module needs the extra of its framework."""
