"""Find the backups of an application at a location, without the application's code."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from stateline.backup.location import BackupLocation
from stateline.backup.object_stores import is_there
from stateline_store import DoesNotExistError

_SHOWN = 5  # folders
_GIVE = "Give the backup.location of the application (on the command line: --backup)."


def location_at(url: str, application_id: str | None = None) -> BackupLocation:
    """Return the backups of this application, or of the only one there. Raises `DoesNotExistError` for a missing
    directory, or if there are several."""
    if not urlsplit(url).scheme and not (is_there(Path(url), "backup") and Path(url).is_dir()):
        raise DoesNotExistError(f"{url} is no directory. {_GIVE}")
    return BackupLocation(url, application_id or application_at(url))


def application_at(url: str, wanted: str | None = None) -> str:
    """Return the id of the application `wanted`, or of the only one with backups there. Raises `DoesNotExistError` with
    what is there instead."""
    location = BackupLocation(url, "")
    found = location.applications()
    if wanted in found:
        return wanted
    if not found:
        folders = location.folders()
        more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
        there = f"It has the folders {', '.join(folders[:_SHOWN])}{more}." if folders else "It has no folders."
        raise DoesNotExistError(f"{url} has no backups. {there} {_GIVE}")
    if wanted is not None:
        raise DoesNotExistError(f"{url} has no backups of {wanted!r}, but of {', '.join(found)}.")
    if len(found) > 1:
        raise DoesNotExistError(
            f"{url} has backups of {', '.join(found)}: name one as application_id (on the command line: "
            "--application-id)."
        )
    return found[0]
