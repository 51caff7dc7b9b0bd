"""`ChangeLog`: the topic of a change feed, read on its own thread for the event loop.

Only that thread uses the consumer and the admin client (`CommittedRecords`). Closing is its last work, and nobody waits
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.log import Record
from stateline.processes.seldom import seldom
from stateline.server.changes.topic_reader import POLL_RECORDS, Begin, CommittedRecords, recreated
from stateline_store import CursorExpiredError, DoesNotExistError, NotReadyError, Position, StatelineError

T = TypeVar("T")

_log = seldom(__name__)


class ChangeLog:
    """A `CommittedRecords` on its own thread. Every method is for the event loop's thread.

    Each may raise `NotReadyError` if the log cannot be read now. After `begin`, `CursorExpiredError` also means that
    the topic is gone.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partitions: Sequence[int],
        *,
        topic_id: str | None = None,
        poll_records: int = POLL_RECORDS,
        is_changelog: bool,
    ) -> None:
        """With a `topic_id`, only the topic that has it is read; `CursorExpiredError` says that there is none."""
        self._config = config
        self._topic = topic
        self._partitions = tuple(partitions)
        self._topic_id = topic_id
        self._poll_records = poll_records
        self._is_changelog = is_changelog
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="changes")
        self._stopped = Event()
        self._reader: CommittedRecords | None = None  # the thread's own
        self._is_used = False
        self.next_offsets: dict[int, int] = {}

    async def begin(self, begin: Begin) -> None:
        """Begin to read. Raises `NotReadyError` if there is no topic yet."""
        self.next_offsets = await self._on_thread(lambda: self._opened().begin(begin))

    async def read(self, without: frozenset[int]) -> list[Record]:
        """Return some records, if any come at once, of all partitions but these. Moves `next_offsets`."""
        records, self.next_offsets = await self._on_thread(lambda: self._opened().read(without))
        return records

    async def ends(self) -> dict[int, int]:
        return await self._on_thread(lambda: self._opened().ends())

    async def ends_of_commits(self, seen: Mapping[int, Position], known: Mapping[int, int]) -> dict[int, int]:
        return await self._on_thread(lambda: self._opened().ends_of_commits(seen, known))

    async def topic_id(self) -> str:
        """Return the topic's id. Raises `NotReadyError` if there is no topic yet."""
        return await self._on_thread(lambda: self._opened().topic_id)

    async def check_topic(self) -> None:
        await self._on_thread(lambda: self._opened().check_topic())

    def close(self) -> None:
        """Let the thread release everything and end, after its current work. Returns at once."""
        if not self._stopped.is_set():
            self._stopped.set()
            if self._is_used:
                self._thread.submit(self._close)
            self._thread.shutdown(wait=False)

    def _opened(self) -> CommittedRecords:
        if self._reader is None:
            # One reader's share of memory: librdkafka's own default is 64 MiB for each.
            kibibytes = max(1, self._config.server_changes_buffer_bytes // 1024)
            small = {"queued.max.messages.kbytes": str(kibibytes), "queued.min.messages": str(POLL_RECORDS)}
            config = self._config.model_copy(update={"consumer": {**small, **self._config.consumer}})
            log = configured_log(config)
            self._reader = CommittedRecords(
                log, self._topic, self._partitions, self._stopped, self._poll_records, is_changelog=self._is_changelog
            )
        if self._topic_id not in (None, self._reader.topic_id):
            raise recreated(self._topic)
        return self._reader

    async def _on_thread(self, work: Callable[[], T]) -> T:
        self._is_used = True
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except DoesNotExistError as error:
            if self.next_offsets or self._topic_id is not None:
                raise recreated(self._topic) from error
            raise NotReadyError(
                f"There is no topic {self._topic!r} yet, which the changes come from: ask again when a worker has "
                "started."
            ) from error
        except (CursorExpiredError, NotReadyError):
            raise
        except StatelineError as error:  # its message names files and brokers: none of the reader's business
            _log.warning("Changes of %s cannot be read: %s", self._topic, error)
            raise NotReadyError(
                f"The log of {self._topic!r} cannot be read now: ask again in a moment, from where you are."
            ) from error

    def _close(self) -> None:
        try:
            if self._reader is not None:
                self._reader.close()
        except StatelineError as error:  # of the consumer, which is no longer needed
            _log.debug("The reader of %s closed with: %s", self._topic, error)
