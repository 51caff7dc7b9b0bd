"""The command `stateline`."""

from stateline.cli.main import main

__all__ = ["main"]
