"""Record which parts of an application were started over (`stateline reset`), and when.

A record of the topic ``<application.id>-nodes`` says it, on either log. The newest one with this key counts:

    key   := 0x00 "reset"
    value := {"epoch", "state": "begun" | "done", "everything": epoch,
              "stores": {store: epoch}, "pipelines": {pipeline: epoch}, "work": what is done, or null}      JSON

``<application>/reset.json``, which is ``{"epoch"}``, says which reset a state directory has followed.

In the log and on disk: never change. An epoch is the milliseconds at which a reset began, and always larger than the
last one, also if the topic was deleted. `everything` and the epochs by name are those of the newest reset of each. So a
directory that has missed several resets finds everything to delete (`stale`).

A reset is `begun` first and `done` last. No process starts in between: `refuse_unfinished`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import orjson

from stateline.deployment.json_files import decoded
from stateline.deployment.nodes_topic import RESET_KEY, ensure_nodes_topic, newest_value, nodes_partition, replace_value
from stateline.log.interface import Log
from stateline_store import ConfigurationError, DamagedDataError, FencedError, LockedError
from stateline_store.clock import now_ms
from stateline_store.files.durable_files import replace_file
from stateline_store.snapshots.backup import Backup

_FILE = "reset.json"

Offsets = Mapping[str, Mapping[str, int]]
"""Topic → partition, as text → next offset."""


@dataclass(frozen=True, slots=True)
class ResetWork:
    """The steps of a reset, decided when it began. A process that completes the reset follows them too. In the
    log: never change.

    `subtopologies` read their input again. With `backup`, the id of one, they continue with the rows of backups, and
    the changelogs are written from those. `stores` and `pipelines` are emptied, with `everything` also undeclared
    ones. `changelogs`, `internal` (repartition topics and markers) and `results` are topics to delete. `offsets` are
    the group's next ones.
    """

    everything: bool = False
    subtopologies: tuple[int, ...] = ()
    stores: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()
    changelogs: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    offsets: Offsets = field(default_factory=dict)
    backup: str = ""


@dataclass(frozen=True, slots=True)
class Stale:
    """State in a directory that is older than a reset."""

    everything: bool = False
    stores: frozenset[str] = frozenset()
    pipelines: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.everything or bool(self.stores or self.pipelines)


@dataclass(frozen=True, slots=True)
class Reset:
    """The newest reset, and the epochs of all before it."""

    epoch: int
    state: Literal["begun", "done"]
    everything: int = 0
    stores: Mapping[str, int] = field(default_factory=dict)
    pipelines: Mapping[str, int] = field(default_factory=dict)
    work: ResetWork | None = None

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, value: bytes) -> Reset:
        """Raises `DamagedDataError` if `encode` did not write this."""
        try:
            tree = orjson.loads(value)
            work = tree["work"]
            if work is not None:
                lists = {name: tuple(found) for name, found in work.items() if isinstance(found, list)}
                tree["work"] = ResetWork(**{**work, **lists})
            found = cls(**tree)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise DamagedDataError(
                f"The record {RESET_KEY!r} of the nodes' topic is not what Stateline writes: {value!r:.200}. Run the "
                "version that wrote it."
            ) from error
        return found

    def stale(self, epoch: int) -> Stale:
        """State older than this in a directory that has followed all resets up to `epoch`."""
        return Stale(
            self.everything > epoch,
            frozenset(name for name, at in self.stores.items() if at > epoch),
            frozenset(name for name, at in self.pipelines.items() if at > epoch),
        )

    def stale_in_backup(self, epoch: int, backup_id: str) -> Stale:
        """State older than this in a backup of such a directory. Backups that a restore of lost changelogs continued
        with, or could have continued with, are not older than that restore."""
        found = self.stale(epoch)
        if self.work is not None and self.work.backup and backup_id <= self.work.backup:
            return replace(found, stores=found.stores - {*self.work.stores})
        return found


def begun(before: Reset | None, here: int, work: ResetWork) -> Reset:
    """The next reset. `before` is the newest one, `here` the epoch of this directory."""
    epoch = max(now_ms(), here + 1, 0 if before is None else before.epoch + 1)
    known = before or Reset(0, "done")
    if work.everything:
        return Reset(epoch, "begun", everything=epoch, work=work)
    stores = {**known.stores, **dict.fromkeys(work.stores, epoch)}
    pipelines = {**known.pipelines, **dict.fromkeys(work.pipelines, epoch)}
    return Reset(epoch, "begun", known.everything, stores, pipelines, work)


def done(reset: Reset) -> Reset:
    """Its `work` stays: it says where the input was to continue."""
    return replace(reset, state="done")


def without_stale(backup: Backup, reset: Reset | None) -> Backup:
    """Return the backup without the stores that a reset has emptied since."""
    if reset is None or not (stale := reset.stale_in_backup(backup.reset_epoch, backup.id)):
        return backup
    return backup.of_parts([p for p in backup.copy.parts if not (stale.everything or p.store in stale.stores)])


def newest_reset(log: Log, application_id: str) -> Reset | None:
    """The committed one, None if nothing was ever reset. Raises what the log raises."""
    with closing(log.admin()) as admin:
        place = nodes_partition(application_id)
        if place.topic not in admin.topics([place.topic]):
            return None
    newest = newest_value(log, place, RESET_KEY)
    return None if newest is None else Reset.decode(newest)


def say_reset(log: Log, application_id: str, found: Reset | None, reset: Reset | None) -> None:
    """Replace `found`; None withdraws the reset. Raises `LockedError` if another reset wrote meanwhile, and what the
    log raises."""
    with closing(log.admin()) as admin:
        place = ensure_nodes_topic(application_id, admin)
    value = None if reset is None else reset.encode()
    transactional_id = f"{application_id}-reset/"
    try:
        is_written = replace_value(
            log, place, transactional_id, RESET_KEY, value, lambda: newest_reset(log, application_id) == found
        )
    except FencedError as error:
        raise LockedError(f"Another reset of {application_id!r} has begun: wait until it is through.") from error
    if not is_written:
        raise LockedError(f"Another reset of {application_id!r} runs: wait until it is through.")


def refuse_unfinished(reset: Reset | None, application_id: str, target: str) -> None:
    """Raise `ConfigurationError` if this reset is not complete. `target` is how commands name the application."""
    if reset is not None and reset.state == "begun":
        by_backup = reset.work is not None and reset.work.backup
        raise ConfigurationError(
            f"{application_id!r} is being {'restored from a backup' if by_backup else 'started over'}, and that was "
            "not completed: offsets, topics and state would be of different times. Complete it first: stateline "
            + (f"backup restore {target} --changelogs-lost" if by_backup else f"reset {target} --resume")
        )


@dataclass(frozen=True, slots=True)
class _Followed:
    epoch: int


def followed_epoch(application: Path) -> int:
    """The epoch of this directory, 0 if it knows no reset. Raises `DamagedDataError` for a damaged file."""
    path = application / _FILE
    try:
        return decoded(_Followed, path.read_bytes()).epoch
    except FileNotFoundError:
        return 0
    except DamagedDataError as error:
        raise DamagedDataError(f"{path} is not the JSON that Stateline writes: {error}. Delete that file: the "
                               "directory's state is taken for older than every reset then.") from error  # fmt: skip


def say_followed(application: Path, epoch: int) -> None:
    """Write that nothing here is older than this reset. Raises `RetryLaterError` if it cannot."""
    replace_file(application / _FILE, orjson.dumps({"epoch": epoch}))


def is_where_it_was_put(reset: Reset | None, topic: str, partitions: Collection[tuple[int, int]]) -> bool:
    """Whether these (partition, next offset) of a topic are those that the newest reset set."""
    if reset is None or reset.work is None or topic not in reset.work.offsets:
        return False
    put = reset.work.offsets[topic]
    return all(put.get(str(partition)) == offset for partition, offset in partitions)
