"""Version of levada."""

__version__ = "0.2.0.dev0"
