"""The version of the distribution; the build and `threadkeep --version` read it."""

__version__ = "0.1.0"
