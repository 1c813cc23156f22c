"""The version of levada."""

__version__ = "0.1.0"
