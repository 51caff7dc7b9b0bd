"""A driver's folder, with an embedded log and the state directory.

It is in memory if the machine has ``/dev/shm``, otherwise among the temporary files. Its bytes are those that a worker
writes to disks, by the same code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from stateline.config.loading import check_settings, load_config
from stateline.config.settings import Config, as_text
from stateline.deployment.pipelines.epoch_marker import EPOCHS_SETTINGS
from stateline.dsl.app import App
from stateline.dsl.topic_patterns import PATTERN_TOPICS
from stateline.log.embedded import EmbeddedLog
from stateline.log.embedded_transactions import MAX_TRANSACTION_TIMEOUT_MS
from stateline.log.interface import NewTopic
from stateline.model.internal_topics import required_topics
from stateline.model.table_topics import table_settings
from stateline.model.topology import Topology
from stateline.serde.plain import shown
from stateline_store import InvalidArgumentError

_IN_MEMORY = Path("/dev/shm")
INSTANCE = "worker-0"
_NEVER_MS = 2**31 - 1  # whoever looks at a test in a debugger is no member that has died
_OWN = ("state.dir", "bootstrap.servers", "commit.interval.ms", "transaction.timeout.ms", "group.instance.id")


class DriverFolder:
    def __init__(self, app: App, given: Mapping[str, Any], topics: Collection[str] = ()) -> None:
        """`given` has settings over those of the `App`. Environment and files are ignored. `topics` will exist: those
        that a pattern matches are read unless the settings have others. Raises `InvalidArgumentError` for settings that
        the driver makes, `ConfigurationError` for unknown ones."""
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(f"config={shown(given)}: give a dict of settings.")
        if own := sorted(given.keys() & {*_OWN}):
            raise InvalidArgumentError(f"{own[0]} is the test driver's own to set: leave it out.")
        self._app = app
        settings = check_settings(given, "TestDriver(config=…)"), check_settings(app.config, "App(config=…)")
        if all(each.pattern_topics is None for each in settings) and (matching := app.matching(topics)):
            given = {**given, PATTERN_TOPICS: matching}
        self._given = [f"{name}={as_text(value)}" for name, value in given.items()]
        self._root = Path(tempfile.mkdtemp(prefix="stateline-test-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        self._lives = 0
        try:
            self._open(self._root / "0")
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path) -> None:
        self.folder = folder
        self.config = self._configured(folder)
        self.log = EmbeddedLog(
            folder / "log.db", session_timeout_ms=_NEVER_MS, transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS
        )

    def _configured(self, folder: Path) -> Config:
        own = [
            f"state.dir={folder / 'state'}",
            f"bootstrap.servers=embedded:{folder / 'log.db'}",
            f"commit.interval.ms={MAX_TRANSACTION_TIMEOUT_MS}",
            f"transaction.timeout.ms={MAX_TRANSACTION_TIMEOUT_MS}",
            "server.scan.processes=0",  # the server is this process alone
        ]
        found = load_config(
            self._app.application_id, defaults=self._app.config, environment={}, overrides=[*self._given, *own]
        )
        self._app.configure(found)
        # A commit comes when the test says so. As a static member, a worker has its tasks back at once after a crash.
        own_terms = {"commit_interval_ms": _NEVER_MS, "group_instance_id": found.member_name(INSTANCE)}
        return found.model_copy(update=own_terms)

    def create_topics(self, topology: Topology, partitions: int | Mapping[str, int]) -> None:
        """Create the topics that users create (`stateline topics --create`), and those of pipelines' markers. Raises
        `InvalidArgumentError` for a count of another topic, and for a wrong count."""
        counts_given = partitions.values() if isinstance(partitions, Mapping) else [partitions]
        if not all(isinstance(count, int) for count in counts_given):
            raise InvalidArgumentError(
                f"partitions={shown(partitions)}: give a number, or a dict of topics' names and numbers."
            )
        dead_letters = self.config.dead_letter_topic
        needed = dict.fromkeys([*required_topics(topology), *([] if dead_letters is None else [dead_letters])])
        counts = dict.fromkeys(needed, partitions) if isinstance(partitions, int) else {**partitions}
        if unknown := sorted(counts.keys() - needed):
            raise InvalidArgumentError(
                f"partitions= has a count for {unknown[0]!r}, which is no topic that this application needs to be "
                f"there; those are {', '.join(needed)}."
            )
        settings = table_settings(topology)
        with closing(self.log.admin()) as admin:
            admin.create_topics(NewTopic(name, counts.get(name, 1), settings.get(name, {})) for name in needed)
            admin.create_topics(NewTopic(name, 1, EPOCHS_SETTINGS) for name in topology.whole_epochs())

    def copied(self) -> Path:
        """Copy all files, as a process that is killed now would leave them."""
        self._lives += 1
        copy = self._root / str(self._lives)
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns("*.sock"))
        return copy

    def move(self, copy: Path) -> None:
        """Continue in that copy. No file of the folder before may be open."""
        shutil.rmtree(self.folder)
        self._open(copy)

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
