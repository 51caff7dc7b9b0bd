"""Open a directory or an object store. Errors name the setting or the option that gave it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stateline.backup.refusals import refusal
from stateline_store import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")


def object_store(url: str, named: str, known: Sequence[str] = SCHEMES, *, create: bool = True) -> ObjectStore:
    """Return a directory, or a place in an object store, which is not asked. `create` makes a missing directory, and
    refuses one that this user may not write to. Needs the extra `backup`. Raises `ConfigurationError` for a URL that
    cannot be used. `named` is its setting or option, of these `known` schemes."""
    import obstore
    from obstore.store import LocalStore, from_url

    scheme = urlsplit(url).scheme
    if scheme and scheme not in SCHEMES:
        raise ConfigurationError(
            f"{named}={url}: no {scheme}:// is known. Give a directory, or one of "
            f"{', '.join(f'{each}://' for each in known)}."
        )
    if not scheme and is_there(Path(url), named) and Path(url).is_file():
        raise ConfigurationError(f"{named}={url} is a file: give a directory.")
    try:
        found = from_url(url) if scheme else LocalStore(url, mkdir=create)
    except (obstore.exceptions.BaseError, OSError, ValueError) as error:
        raise _unusable(url, named, error) from error
    if create and not scheme and not os.access(url, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _unusable(url, named, PermissionError("Permission denied (os error 13)"))
    return found


def is_there(path: Path, named: str) -> bool:
    """Return whether there is a file or a directory. Raises `ConfigurationError` if this user may not look. `named` is
    the setting or option that gave the path."""
    try:
        return path.exists()
    except OSError as error:
        raise _unusable(str(path), named, error) from error


def _unusable(url: str, named: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(f"{named}={url} cannot be used: {refusal(url, error)}")
