"""StoreFiles: where the files of one store partition lie in its task's directory, and their deletion."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from stateline_store.files.commit_notice import CommitNotice
from stateline_store.files.directory import directory_name, notice_path, store_path


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The files of one store. `timestamped`: in the timestamped (v2) format, which has names of its own."""

    task: Path
    name: str
    timestamped: bool

    @property
    def database(self) -> Path:
        """The directory of the store's RocksDB."""
        return store_path(self.task, self.name, timestamped=self.timestamped)

    @property
    def notice(self) -> Path:
        """The commit notice."""
        return notice_path(self.task, self.name, timestamped=self.timestamped)

    @property
    def position(self) -> Path:
        """The Position file that Kafka Streams may have left."""
        return self.task / f"{self.name}.position"

    def wipe(self) -> None:
        """Delete database and notice. Readers raise `NotPresentError` from then on. Raises `OSError`."""
        CommitNotice(self.notice).withdraw()
        with contextlib.suppress(FileNotFoundError):
            # Moved in one step: half a database, after a crash in here, could be taken for a whole one.
            os.rename(self.database, self._trash)
        self.finish_wipe()

    def finish_wipe(self) -> None:
        """Delete the rest of an interrupted `wipe`. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._trash)

    @property
    def _trash(self) -> Path:
        return self.task / f".wiped-{directory_name(self.name, timestamped=self.timestamped)}"
