"""The command `stateline`: a file for each of its commands; `main` is where they meet."""

from stateline.cli.main import main

__all__ = ["main"]
