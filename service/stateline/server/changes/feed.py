"""A change feed: the committed changes of a store, in the order of each partition's log.

They come from the log that the store can be rebuilt from: its changelog, or the topic of a table. With at_least_once, a
record is in the log before the store commits it. So each record is held back until the store's committed state covers
it.

| store                   | a record is given when                                                                     |
|-------------------------|--------------------------------------------------------------------------------------------|
| persistent              | its offset is at most the one that the newest commit has in the store's `offsets`          |
| table in memory         | its offset is at most the one in the committed Position, which the worker tells            |
| other stores in memory  | the Position that its commit carries in the changelog is covered by the committed Position |

Another node that owns a partition is asked over the link. A partition without an owner stays where it is until it has
one: the next owner continues its log. So the offsets of a feed mean the same at every node.

The feed wakes when a worker commits, here or there, and reads the log only if there is something to give.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import Any

from stateline.config.settings import Config
from stateline.log import Record
from stateline.log.interface import Headers
from stateline.model.store_definition import StoreDefinition
from stateline.processing.changelog import headers_of_table, own_headers
from stateline.processing.failures import FailureHandler
from stateline.processing.reading import keyed, readable, since_1970
from stateline.serde.plain import shown
from stateline.server.changes.log import ChangeLog
from stateline.server.changes.pending import ChangeSource, PendingChanges
from stateline.server.changes.topic_reader import After, AfterInput, Begin
from stateline.server.contract.arguments import numbers_shown
from stateline.server.contract.written_arguments import parsed_json
from stateline.server.state.served_stores import ServedStore
from stateline_store import InvalidArgumentError, NotReadyError, Position, RecordError

logger = logging.getLogger(__name__)

# How often an idle feed asks whether its topic is still the same one.
_TOPIC_CHECK_S = 5.0
_TAKEN_AT_ONCE = 500  # records: about a millisecond
# Longer than a worker that is being restarted needs; each look ends sooner by itself.
_IDLE_S = 60.0


class ChangeFeed:
    """The changes of some partitions of one store, for one reader. For the event loop's thread; `close` it."""

    def __init__(self, source: ChangeSource, store: ServedStore, partitions: Sequence[int]) -> None:
        """Raises `UnknownQueryTypeError` for a store that has no changelog."""
        self.topic = source.topic(store)
        self._commits = source.commits
        self._partitions = tuple(partitions)
        self._definition, self._config = store.definition, source.config
        self._committed = source.committed(store)
        is_changelog = store.definition.source is None
        self._log = ChangeLog(source.config, self.topic, partitions, is_changelog=is_changelog)
        self._pending = {p: PendingChanges(p) for p in partitions}
        self._reach: dict[int, int] = {}  # up to where the log is to be read
        self._positions: Mapping[int, Position] = {}  # of stores in memory
        self._unreadable: RecordError | None = None
        self._check_due_s = 0.0
        self._behind_since_s: float | None = self._now_s()

    @property
    def lag_s(self) -> float:
        """For how long there has been something to give; 0 if everything committed was given."""
        return 0.0 if self._behind_since_s is None else self._now_s() - self._behind_since_s

    async def begin(self, begin: Begin | None) -> dict[int, int]:
        """Begin to read, after what is committed now if `begin` is None. Return the next offset of each partition.

        Raises `CursorExpiredError` if the log no longer has what comes next, `NotReadyError` if it cannot be read.
        """
        await self._log.begin(begin or await self._now())
        return self._log.next_offsets

    async def changes(self) -> AsyncGenerator[list[Record], None]:
        """Yield committed changes as they come, without end. Each partition's are in the order of their offsets.

        Raises `CursorExpiredError` if the topic was replaced or has lost what comes next. Raises `NotReadyError` if the
        log cannot be read or the server is shutting down: continue after the last change then. Raises `RecordError`
        like `changes_of`, after everything readable before that record and in other partitions.
        """
        while True:
            commit = self._commits.next_commit()
            self._committed.announce(self._partitions)
            await self._look()
            has_given = False
            for taken in self._take():
                self._note_behind()
                has_given = True
                yield taken
            if self._unreadable is not None:
                raise self._unreadable
            if has_given:
                continue
            if behind := self._behind():
                self._note_behind()
                if not await self._read(behind):
                    await self._commits.wait(commit, self._now_s() + 0.001)  # no patience, but the server may stop
            else:
                self._behind_since_s = None
                await self._check_topic()
                await self._commits.wait(commit, self._now_s() + _IDLE_S)

    def close(self) -> None:
        self._log.close()

    async def _now(self) -> Begin:
        begin: Begin
        if self._committed.by_position:
            positions = await self._committed.positions(self._partitions)
            merged = Position()
            for position in positions.values():
                merged = merged.merge(position)
            known, begin = set(positions), AfterInput(merged, exactly=False)
        else:
            ends = await self._committed.next_offsets(self._partitions)
            known, begin = set(ends), After({p: end - 1 for p, end in ends.items() if end > 0}, exactly=False)
        await self._require(self._committed.elsewhere(self._partitions), known)
        return begin

    async def _require(self, elsewhere: Collection[int], known: Collection[int]) -> None:
        """Raise `NotReadyError` if these partitions may have commits that are not known here."""
        if unknown := [p for p in elsewhere if p not in known]:
            ends = await self._log.ends()
            if any(ends[p] for p in unknown):
                raise NotReadyError(
                    f"The end of partition {unknown[0]} is not known here now, and latest means the end of all "
                    "partitions. Ask again in a moment."
                )

    async def _look(self) -> None:
        """Find out what is committed now. A partition that cannot be read stays where it was."""
        if self._committed.by_position:
            self._positions = await self._committed.positions(self._partitions)
            ends = await self._log.ends() if any(self._positions.values()) else {}
            # Without a Position nothing could be given, and all that is read would pile up.
            self._reach = {p: end - 1 for p, end in ends.items() if self._positions.get(p)}
            return
        reach = await self._committed.offsets(self._partitions)
        if any(offset < self._reach.get(p, -1) for p, offset in reach.items()):
            self._check_due_s = 0.0  # rebuilt, from the same topic or from a new one
        self._reach |= reach

    async def _read(self, behind: Collection[int]) -> bool:
        """Return whether the log had anything."""
        read: dict[int, list[Record]] = {}
        # Partitions that were read further than is committed pause while others catch up.
        ahead = frozenset(p for p, pending in self._pending.items() if pending and p not in behind)
        for record in await self._log.read(ahead):
            read.setdefault(record.partition, []).append(record)
        for p, records in read.items():
            self._pending[p].add(records, by_position=self._committed.by_position)
        return bool(read)

    def _take(self) -> Iterator[list[Record]]:
        """Yield what is read and committed, like `changes_of`, some at a time: a commit can have many records. If a
        partition has an `_unreadable` record, yield the records before it."""
        for p, pending in self._pending.items():
            if self._committed.by_position:
                taken = pending.up_to_position(self._positions.get(p, Position()))
            else:
                taken = pending.up_to_offset(self._reach.get(p, -1))
            for first in range(0, len(taken), _TAKEN_AT_ONCE):
                some = taken[first : first + _TAKEN_AT_ONCE]
                try:
                    changes = changes_of(self._definition, some, self._config)
                except RecordError as error:
                    self._unreadable = error
                    yield from filter(None, [list(self._before_unreadable(some))])
                    break
                if changes:
                    yield changes

    def _before_unreadable(self, records: Sequence[Record]) -> Iterator[Record]:
        for record in records:
            try:
                yield from changes_of(self._definition, [record], self._config)
            except RecordError:
                return

    def _behind(self) -> frozenset[int]:
        next_offsets = self._log.next_offsets
        return frozenset(p for p, reach in self._reach.items() if next_offsets[p] <= reach)

    async def _check_topic(self) -> None:
        if self._now_s() >= self._check_due_s:
            await self._log.check_topic()
            self._check_due_s = self._now_s() + _TOPIC_CHECK_S

    def _note_behind(self) -> None:
        if self._behind_since_s is None:
            self._behind_since_s = self._now_s()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def changes_of(definition: StoreDefinition, records: Sequence[Record], config: Config) -> list[Record]:
    """Return those of these committed records that are changes of the store.

    A record of a table's topic that cannot be read raises `RecordError` under the policy fail, which ends the worker
    too. Otherwise it is left out and logged: the worker has left it out as well, or today's code does not read its
    schema.
    """
    if definition.source is None:
        return [record for record in records if record.key is not None]
    fails = config.deserialization_exception_handler == "fail"
    failures = FailureHandler("fail", "fail", None) if fails else None
    timed = records if definition.source.event_time is not None else since_1970(records, failures)
    found = list(readable(definition.source, timed, failures))
    if len(found) < len(records):
        logger.warning("%d records of %s were left out of the changes of %s: they cannot be read",
                       len(records) - len(found), definition.source.name, definition.name)  # fmt: skip
    return list(keyed(found))


def shown_headers(definition: StoreDefinition, record: Record) -> Headers | None:
    """Return the headers that a query shows: those of the record, of a changelog its own. None for a deletion."""
    if record.value is None:
        return None
    own = own_headers if definition.source is None else headers_of_table(definition.source)
    return own(record.headers)


def timestamp_of(definition: StoreDefinition, record: Record) -> int | None:
    """Return the timestamp that a query shows. A deletion has one only if the log has that of the input: in a changelog
    of plain rows it is the time of the commit."""
    if definition.kind == "versioned" or definition.source is not None:
        return record.timestamp_ms
    return record.timestamp_ms if definition.timestamped and record.value is not None else None


def read_position(what: str, given: Any, topic: str, inputs: Sequence[str], partitions: int) -> Begin:
    """Return where to begin after a position: an event's id or the `position` of an answer, as JSON text or value.

    Raises `InvalidArgumentError`.
    """
    try:
        position = Position.from_json(parsed_json("It", given) if isinstance(given, str) else given)
    except ValueError as error:  # InvalidArgumentError is one; Python's own, a number of 4300 digits
        why = str(error) if isinstance(error, InvalidArgumentError) else f"{shown(given)} is no position."
        raise InvalidArgumentError(
            f"{what}: {why} Give the id of an event, the position of an answer, earliest or latest."
        ) from error
    for (name, partition), _ in position:
        if partition >= partitions:
            raise InvalidArgumentError(
                f"{what} names partition {partition} of {shown(name)}, which has {numbers_shown(partitions)}."
            )
    strangers = [name for name in position.offsets if name != topic and (topic in inputs or name not in inputs)]
    if strangers or (topic in position.offsets and len(position.offsets) > 1):
        known = ", ".join(inputs)
        raise InvalidArgumentError(
            f"{what} names {shown(', '.join(position.offsets))}: changes come from {topic!r}, whose offsets are in "
            f"the id of an event; in the position of an answer are those of the input, {known}."
        )
    if topic in position.offsets or topic in inputs:
        return After(position.offsets.get(topic, {}))
    return AfterInput(position)
