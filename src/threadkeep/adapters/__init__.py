"""Sessions as other frameworks' interfaces; each module needs the extra of its framework, and is imported by name."""
