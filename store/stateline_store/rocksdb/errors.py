"""Translates RocksDB's errors into Stateline's. rocksdict raises bare `Exception` with RocksDB's status as text."""

from __future__ import annotations

from pathlib import Path

from rocksdict import DbClosedError

from stateline_store.errors import (
    DamagedDataError,
    LockedError,
    NewerFormatError,
    NotPresentError,
    StatelineError,
    StorageError,
    StoreClosedError,
)

# Status codes come first in RocksDB's text (util/status.cc), errno's text last (`IOError` in
# env/io_posix.cc).
_DAMAGED = ("Corruption:",)
# Of `_DAMAGED`, in table/format.cc, table/table_properties.cc and db/version_edit.cc: what a newer RocksDB writes and
# some flipped bits look alike, and only the latter may be deleted.
_NEWER = ("unsupported format_version", "Unknown Footer version", "a future feature", "unknown tag", "custom field not")
_LOCKED = ("lock hold by current process", "While lock file")
_ENVIRONMENT = {
    "No space left on device": "the disk is full: free some space",
    "Disk quota exceeded": "the disk quota is used up: free some space",
    "Read-only file system": "the file system is read-only: make it writable",
    "Permission denied": "the permissions do not allow it: let this user write there",
    "Too many open files": "this process has too many files open: raise its limit (ulimit -n)",
    "Input/output error": "the disk reports an error: check it before anything else",
}


def translated(error: Exception, directory: Path) -> Exception:
    """Return the error to raise in place of rocksdict's error about this directory. Other errors come back as they
    are."""
    if isinstance(error, StatelineError):
        return error
    if isinstance(error, DbClosedError):
        return StoreClosedError(f"{directory} is closed: call init first.")
    if isinstance(error, OSError):  # rocksdict's own file of options, beside RocksDB's
        return _by_text(str(error), directory)
    if type(error) is not Exception:
        return error  # a programming error (TypeError, …): nothing that RocksDB reported
    return _by_text(str(error), directory)


def _by_text(text: str, directory: Path) -> StatelineError:
    for sign, advice in _ENVIRONMENT.items():
        if sign in text:
            return StorageError(f"{directory}: {advice}, then open the store again. Nothing was deleted. ({text})")
    if any(sign in text for sign in _LOCKED):
        return LockedError(f"{directory} is open in another process, or twice in this one. ({text})")
    if any(sign in text for sign in _NEWER):
        return NewerFormatError(
            f"The store in {directory} has files that this version's RocksDB does not know: a newer version of "
            "Stateline wrote them, or they are damaged. Nothing was changed: run the newer version; or, to rebuild the "
            f"store from its changelog, stop its worker and delete this directory. ({text})"
        )
    if any(sign in text for sign in _DAMAGED):
        return damaged(directory, text)
    if "Column families not opened" in text:
        return NewerFormatError(
            f"{directory} has column families that this version of Stateline does not know: a "
            f"newer one wrote it, or by another program. Use that one. ({text})"
        )
    if "No such file or directory" in text:
        return NotPresentError(f"{directory} is not there, or not complete yet. ({text})")
    return StorageError(f"{directory}: RocksDB failed: {text}. Open the store again.")


def damaged(directory: Path, what: str) -> DamagedDataError:
    """Return the error for data that cannot be trusted, with the way out."""
    return DamagedDataError(
        f"The store in {directory} is damaged: {what}. To rebuild it, stop its worker and delete this directory: "
        "it is restored from its changelog at the next start."
    )
