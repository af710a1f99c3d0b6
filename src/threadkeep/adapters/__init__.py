"""Adapters for the interfaces of other frameworks. Each module needs the extra that installs its framework."""
