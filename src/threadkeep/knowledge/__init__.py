"""Facts, procedures and persons: knowledge that agents keep beyond a session."""
