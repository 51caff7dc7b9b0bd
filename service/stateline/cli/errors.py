"""Turn an error of a command into a message and an exit code."""

from __future__ import annotations

import os

from typer.exceptions import TyperException

from stateline.deployment.refused_stores import StoresRefusedError
from stateline.processes.child import CALLERS_MISTAKE, STORES_REFUSED
from stateline_store.errors import CallerError, RecordError, StatelineError

# Causes of a failed access to a file that no restart mends.
_WRONG_PATH = (PermissionError, FileExistsError, NotADirectoryError, IsADirectoryError)


def explained(error: BaseException) -> tuple[str, int]:
    """The message in one line, and the exit code."""
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)
        hint = f" Try '{context.command_path} --help'." if context is not None else ""
        return f"{error.format_message().rstrip('.')}{_given(error)}.{hint}", CALLERS_MISTAKE
    if isinstance(error, StoresRefusedError):
        return str(error), STORES_REFUSED
    # A bad record is no mistake in the command line, and no reason to stop the server.
    if isinstance(error, CallerError) and not isinstance(error, RecordError):
        return str(error), CALLERS_MISTAKE
    if isinstance(error, StatelineError):
        return str(error), CALLERS_MISTAKE if isinstance(error.__cause__, _WRONG_PATH) else 1
    if isinstance(error, PermissionError) and error.filename is not None:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        return (
            f"{path}: {error.strerror}. Run as its owner, give this user the right, or set another state.dir.",
            CALLERS_MISTAKE,
        )
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text or 'no message'}. Run again with --traceback to see where.", 1


def _given(error: TyperException) -> str:
    """The refused value, which Typer leaves out."""
    from pydantic_core import ValidationError

    refused = error.__cause__
    if not isinstance(refused, ValidationError):
        return ""
    return f" (given: {refused.errors()[0]['input']!r})"
