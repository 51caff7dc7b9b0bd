"""Find the backups that a command is about: those of an App, or of a location without the application's code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stateline.backup.applications import application_at, location_at
from stateline.backup.location import BackupLocation
from stateline.cli.target import loaded
from stateline.config.loading import read_config
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.model.topology import Topology
from stateline_store import InvalidArgumentError

_KEPT_BY = ("backup.retention.ms", "backup.keep")


class Backups(NamedTuple):
    """The backups of one application. `app` is None without its code."""

    location: BackupLocation
    config: Config
    app: App | None

    @property
    def topology(self) -> Topology | None:
        """The application's topology, None without its code."""
        return None if self.app is None else self.app.configured_topology(self.config)

    def refuse_unknown_retention(self) -> None:
        """Raise `InvalidArgumentError` without the settings that say which backups stay: those of the application's
        servers may keep more than the defaults."""
        unset = [name for name in _KEPT_BY if self.config.origin(name) == "default"]
        if self.app is None and unset:
            raise InvalidArgumentError(
                "Without MODULE:APP, the settings of its servers are not known. Give "
                f"{' and '.join(f'--set {name}=…' for name in unset)}, as they have them."
            )


def backups_of(
    target: str | None,
    backup: str | None,
    application_id: str | None,
    config_file: Path | None,
    settings: Sequence[str] | None,
) -> Backups:
    """Return the backups of the App `target`, or of the location `backup`. Raises `InvalidArgumentError` unless one of
    them is given, `DoesNotExistError` if there are no backups of this application, and as `BackupLocation`."""
    if backup is None:
        if target is None:
            raise InvalidArgumentError("Give MODULE:APP, or --backup LOCATION without the application's code.")
        if application_id is not None:
            raise InvalidArgumentError("--application-id is for --backup: name its location.")
        app, config = loaded(target, config_file, settings)
        return Backups(BackupLocation.of(config), config, app)
    if target is not None:
        raise InvalidArgumentError("--backup needs no application: leave out MODULE:APP or --backup.")
    location = location_at(backup, application_id)
    if application_id is not None:
        application_at(backup, application_id)
    config = read_config(location.application_id, path=config_file, overrides=settings or ())
    return Backups(location, config, None)
