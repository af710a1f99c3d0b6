"""The routes of the service's own API, one module for each subject."""
