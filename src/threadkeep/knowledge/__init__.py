"""Facts, procedures and persons: what agents learn, beyond the session in which they learned it."""
