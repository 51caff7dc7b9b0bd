"""Whether the state directory can be one, asked before anything else is done. Reads only."""

from __future__ import annotations

import os
import stat

from stateline.config import Config
from stateline_store.errors import ConfigurationError


def check_state_directory(config: Config) -> None:
    """Raises `ConfigurationError` when state.dir, or a folder above it, is a file or closed to this user.

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


def _refused(config: Config, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"state.dir = {str(config.state_dir)!r} (from {config.origin('state.dir')}) cannot be used: {reason}. "
        "Set another state.dir, or run as the user whose directory it is."
    )
