"""The StateStore contract (KIP-892): the methods of every store, also of a user's own.

Lifecycle (illegal moves raise `StoreClosedError`):

    created ──init──► open ──close──► closed ──init──► open …

Only one thread, the owner, writes. It stages records with the store's `put …`, then calls `commit`. The runtime depends
on a store's declarations:

| declares                            | the runtime                                                        |
|-------------------------------------|--------------------------------------------------------------------|
| `persistent` and `manages_offsets`  | resumes it from `committed_offset`                                 |
| `persistent`, not `manages_offsets` | keeps its offsets in the task's `.checkpoint`, written at a commit |
| not `persistent`                    | restores it from the start of its changelog                        |
| not `transactional`                 | rebuilds it after a crash under exactly-once: it may hold too much |

A user's own persistent store keeps its files only in ``context.directory / name``. The runtime deletes this folder when
the store must be rebuilt.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stateline_store.errors import TopologyError, UnknownQueryTypeError
from stateline_store.layout import StoreTypes
from stateline_store.position import TopicPartition


class IsolationLevel(enum.StrEnum):
    """Whether a reader sees staged records, or only committed ones (KIP-892)."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The place where a store opens, and the changelog partition that it follows.

    - `directory` is the task's directory. A persistent store keeps its files below it.
    - `changelog` is None for a store that is not logged. `sync` asks for an fsync per commit.
    - `plain_format` opens a timestamped store on plain (v1) files, during an upgrade (KIP-258, `plain_values.py`).
    - `types` are the declared types. A store of Stateline's kinds does not open on files with others. None: no check.
    """

    task_id: str
    directory: Path
    changelog: TopicPartition | None = None
    sync: bool = False
    plain_format: bool = False
    types: StoreTypes | None = None


class Change(NamedTuple):
    """A record for a changelog: the store's key, the plain value (None deletes) and its timestamp in milliseconds since
    the epoch. -1 is an unknown timestamp. None, of a store without timestamps, means the time of the commit."""

    key: bytes
    value: bytes | None
    timestamp: int | None


class StateStore(ABC):
    """A store of one task. Not thread-safe: the thread that called `init` owns it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's name, unique in its application."""

    @property
    @abstractmethod
    def persistent(self) -> bool:
        """Whether committed records survive `close` and a crash of the process."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the store can be read and written now."""

    @abstractmethod
    def init(self, context: StoreContext) -> None:
        """Open the store for its owner.

        Raises `LockedError` if another process owns the directory, and `DamagedDataError` if the files are damaged.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop staged records and release all resources. A second call does nothing."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        """Make everything staged since the last commit visible to READ_COMMITTED readers, atomically.

        `changelog_offsets` has the offset of the last applied record by changelog partition: one for a logged store and
        a table, none for a store without a changelog and a global table. The runtime adds its own offsets, with topics
        that begin with "$" or are of epochs. With `manages_offsets`, the same atomic step persists them. Only the
        runtime calls this. The default flushes, for stores written before KIP-892.

        After an error with an unknown outcome, the store is poisoned (`PoisonedError`) until it is reopened.
        """
        del changelog_offsets
        self.flush()

    def staged_changes(self) -> Iterable[Change]:
        """Return the changes since the last commit. The runtime writes them to the changelog, then commits. The default
        returns none. A user's own store that is declared as logged must override this and `restore`."""
        return ()

    def restore(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Apply (key, value, record timestamp) of changelog records, the newest last. A `commit` follows. The default
        raises `TopologyError`: declare the store as not logged."""
        del changes
        raise TopologyError(f"Store {self.name!r} has no `restore`: define it, or declare the store with logged=False.")

    def query(self, query: Any, isolation_level: IsolationLevel) -> Any:
        """Answer the application's own query over HTTP (`"type": "custom"`). `query` and the result are JSON as Python
        objects. `READ_COMMITTED` is only asked of a `transactional` store, and must not show staged records.

        The owner's thread calls it between slices of its work, once for each asked partition. The worker waits for it.
        It must not write. Raise `InvalidArgumentError` for a query that makes no sense. The default raises
        `UnknownQueryTypeError`.
        """
        del query, isolation_level
        raise UnknownQueryTypeError(f"Store {self.name!r} answers no custom query: its class does not define `query`.")

    def flush(self) -> None:
        """Deprecated since KIP-892: `commit` replaces it. Does nothing."""
        return

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the last committed changelog offset of this partition. Returns None before a commit, and if the store
        is not persistent or does not manage its offsets."""
        del partition
        return None

    @property
    def manages_offsets(self) -> bool:
        """Whether `commit` persists its offsets. Otherwise it ignores them."""
        return False

    @property
    def transactional(self) -> bool:
        """Whether a put stays in a buffer, out of sight and off the disk, until `commit`."""
        return False

    @property
    def approximate_num_uncommitted_bytes(self) -> int:
        """The approximate number of bytes that the next `commit` frees. 0 for a store without transactions."""
        return 0
