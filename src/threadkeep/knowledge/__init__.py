"""Facts, procedures and persons: knowledge that agents keep beyond the session in which they learned it."""
