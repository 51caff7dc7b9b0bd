"""The question before a command deletes something."""

from __future__ import annotations

import sys

import typer

from stateline_store import InvalidArgumentError


def confirmed(question: str, *, yes: bool, before: str = "") -> bool:
    """Ask on standard error unless `yes`, and return the answer. Raises `InvalidArgumentError` if nobody can answer.
    `before` is what to do before giving --yes."""
    try:
        return yes or typer.confirm(question, err=True)
    except typer.Abort as error:
        if sys.stdin is not None and sys.stdin.isatty():  # by Ctrl-C or Ctrl-D
            return False
        raise InvalidArgumentError(
            f"Nobody has answered, so nothing was done: give --yes where nobody can be asked{before}."
        ) from error
