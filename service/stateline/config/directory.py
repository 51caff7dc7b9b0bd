"""Whether the state directory can be one, asked before anything else is done."""

from __future__ import annotations

import errno
import os
import stat

from stateline.config.settings import Config
from stateline_store.directory import StateDirectory
from stateline_store.errors import ConfigurationError, RetryLaterError

# What time can mend: all else that keeps a directory from being made is a wrong path.
_PASSES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def check_state_directory(config: Config) -> None:
    """Raises `ConfigurationError` when state.dir, or a folder above it, is a file or closed to this user. Reads only.

    A directory that is not there yet is fine when the first one above it that exists may be written to.
    """
    directory = config.state_dir.absolute()
    for path in (directory / config.application_id, directory, *directory.parents):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue  # what is above it tells
        except OSError as error:
            raise _refused(config, f"{path} cannot be read ({error.strerror})") from error
        if not stat.S_ISDIR(mode):
            raise _refused(config, f"{path} is a file, not a directory")
        is_made = path == directory or directory in path.parents
        if not os.access(path, os.R_OK | os.X_OK if is_made else os.W_OK | os.X_OK, effective_ids=True):
            raise _refused(config, f"this user may not {'read' if is_made else 'write to'} {path}")
        if not is_made or path == directory:
            return


def make_state_directory(config: Config) -> StateDirectory:
    """The application's directory, made if need be. Raises `ConfigurationError` when it cannot be where it should, and
    `RetryLaterError` when it can and, for example, the disk is full.
    """
    try:
        return StateDirectory(config.state_dir, config.application_id)
    except RetryLaterError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno in _PASSES:
            raise
        path = config.state_dir / config.application_id
        raise _refused(config, f"{path} cannot be made ({cause.strerror})") from error


def _refused(config: Config, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"state.dir = {str(config.state_dir)!r} (from {config.origin('state.dir')}) cannot be used: {reason}. "
        "Set another state.dir, or run as the user whose directory it is."
    )
