"""RocksDBSecondary: one opening of a RocksDB secondary, and whether a catch-up of it can be trusted.

`secondary` has the numbered rules.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from rocksdict import AccessType, Rdict

from stateline_store.engines.engine import Commit
from stateline_store.errors import NotPresentError, RetryLaterError
from stateline_store.rocksdb.errors import translated
from stateline_store.rocksdb.options import secondary_options
from stateline_store.rocksdb.rows import OFFSETS_FAMILY, read_commit, written_format
from stateline_store.rocksdb.write_ahead_logs import refuse_holes


class OwnerFiles(NamedTuple):
    """The owner's files at one moment: the manifest's name and size, and the numbers of the logs."""

    manifest: tuple[str, int]
    logs: frozenset[int]

    @classmethod
    def of(cls, directory: Path) -> OwnerFiles:
        """Return the present files. Raises `NotPresentError` if there is no database, or not yet."""
        path = str(directory)  # each refresh comes here twice, and pathlib takes longer than the system
        try:
            with open(f"{path}/CURRENT", "rb", buffering=0) as current:
                name = current.read().decode().strip()
            size = os.stat(f"{path}/{name}").st_size
            logs = frozenset(int(entry[:-4]) for entry in os.listdir(path) if entry.endswith(".log"))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotPresentError(f"{directory} holds no database now: {error}. Ask again.") from error
        return cls((name, size), logs)

    def lead_to(self, now: OwnerFiles) -> bool:
        """Return whether the log whose end may be unread has not been flushed since (rule 2)."""
        newest = max(self.logs, default=0)
        return newest in now.logs and (newest == max(now.logs) or self.manifest == now.manifest)


class RocksDBSecondary:
    """One opening of a secondary. Each has a scratch folder of its own, because an open scan may outlive it.

    The scratch folder is opened, because rocksdict makes and writes into the given folder, also for a reader. It has
    links to CURRENT and the manifest in use. Options name the folder of logs and tables.
    """

    def __init__(self, directory: Path, scratch: Path, generation: int, *, proven: bool) -> None:
        """Open the database. `proven`: the logs of this generation were checked before (rule 5)."""
        self.directory = directory
        self.generation = generation
        self.failed = False
        self._files = OwnerFiles.of(directory)
        self.scratch = Path(tempfile.mkdtemp(prefix="secondary-", dir=scratch))
        try:
            if not proven:
                refuse_holes(directory)
            owners = directory.absolute()
            for name in ("CURRENT", self._files.manifest[0]):
                (self.scratch / name).symlink_to(owners / name)
            self.db = Rdict(
                str(self.scratch),
                secondary_options(owners),
                column_families={"default": secondary_options(owners), OFFSETS_FAMILY: secondary_options(owners)},
                access_type=AccessType.secondary(str(self.scratch)),
            )
            self._offsets = self.db.get_column_family(OFFSETS_FAMILY)
            if OwnerFiles.of(directory).manifest != self._files.manifest:
                raise RetryLaterError(f"{directory} was flushed or compacted while it was being opened.")
            _, self.layout, self.types = written_format(self._offsets, directory)
            self.commit: Commit = read_commit(self._offsets, directory)
        except Exception as error:
            self.close()
            raise translated(error, directory) from error

    def can_catch_up(self, now: OwnerFiles) -> bool:
        """Return whether a catch-up can be trusted (rule 2), and none has failed twice."""
        return not self.failed and self._files.lead_to(now)

    def catch_up(self, before: OwnerFiles, *, last_chance: bool) -> None:
        """Follow the owner, whose files were `before` a moment ago. After an error, one more try is allowed, the
        `last_chance`."""
        self.failed = last_chance
        try:
            self.db.try_catch_up_with_primary()
            if not self._files.lead_to(OwnerFiles.of(self.directory)):
                raise RetryLaterError(f"{self.directory} was flushed while it was being read.")
            self.commit = read_commit(self._offsets, self.directory)
        except Exception as error:
            raise translated(error, self.directory) from error
        # From before the catch-up: a log that appeared during it may not have been read, nor the end of the last one.
        self._files = before

    def close(self) -> None:
        """Close the database. Open scans keep their rows."""
        if hasattr(self, "_offsets"):
            self._offsets.close()
        if hasattr(self, "db"):
            self.db.close()
        shutil.rmtree(self.scratch, ignore_errors=True)  # scratch: a leftover is only a few kilobytes
