"""Adapters for the interfaces of other frameworks. The module of a framework needs the extra that installs it."""
