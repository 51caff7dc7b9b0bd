"""What goes into `pipeline_app`, and what must come out: the batch computation, in plain Python."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from service.spark.departures import iso
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log
from support.apps.pipeline_app import GAP_MS, KEPT_REST, MINUTE_MS, PARTITIONS, VISITOR
from support.run.length import long_or_short

BOOKS = 40
_BEGIN_MS = 1_356_998_400_000
_STEP_MS = 500  # between two entries: a minute has 120 of them
_PER_ACCOUNT = 40  # entries, about; then the account is not seen again
_OPEN_ACCOUNTS = 10
_LATE_MS = 8_000  # a tenth of the entries, at most so much
_PAUSE_S = long_or_short(0.1, 0.25)  # of the feeder, after ten entries


class Entry(NamedTuple):
    """One record of the journal."""

    account: str
    book: str
    amount: int
    at_ms: int


Sums = Mapping[Any, tuple[int, int]]
"""What is summed by → (entries, sum)."""
Books = tuple[tuple[str, tuple[int, int]], ...]
"""All of the store `books` at one moment, in order."""


class Ledger:
    """Every entry by partition and offset. One thread adds, others look when it pauses."""

    def __init__(self) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(PARTITIONS)]
        self._random = random.Random(6)
        self._made = 0

    def add(self) -> tuple[int, Entry]:
        """One more, and its partition: an account's are in one, so that its newest entry is the one that came last."""
        account = self._made // _PER_ACCOUNT + self._random.randrange(_OPEN_ACCOUNTS)
        book, amount = self._random.randrange(BOOKS), self._random.randrange(-50, 100)
        late_ms = self._random.randrange(_LATE_MS) if self._random.random() < 0.1 else 0
        at_ms = _BEGIN_MS + self._made * _STEP_MS - late_ms
        entry = Entry(f"a{account:06}", f"b{book:02}", amount, at_ms - at_ms % 1_000)
        partition = account % PARTITIONS
        self.entries[partition].append(entry)
        self._made += 1
        return partition, entry

    def stores(self) -> dict[str, Sums]:
        """What each store must hold when all of the input is in it."""
        every = [entry for entries in self.entries for entry in entries]
        totals = _summed((entry.account, entry) for entry in every)
        return {
            "uneven": {account: sums for account, sums in totals.items() if sums[1] % KEPT_REST},
            "minutes": _summed(((entry.book, entry.at_ms - entry.at_ms % MINUTE_MS), entry) for entry in every),
            "visits": _visits(every),
            "books": _summed((entry.book, entry) for entry in every),
        }

    def books_at_epochs(self, markers: Iterable[EpochMarker]) -> list[Books]:
        """The store `books` before the first micro-batch and after each of these."""
        sums: dict[str, tuple[int, int]] = {}
        begin = [0] * PARTITIONS
        found: list[Books] = [()]
        for marker in markers:
            ends: dict[str, int] = json.loads(marker.end_offsets[0] or "{}").get("journal", {})
            for partition in range(PARTITIONS):
                end = ends.get(str(partition), begin[partition])
                _add_up(sums, ((entry.book, entry) for entry in self.entries[partition][begin[partition] : end]))
                begin[partition] = end
            found.append(tuple(sorted(sums.items())))
        return found


def _visits(entries: Iterable[Entry]) -> Sums:
    """Of each visitor and its visit's first and last time the entries and their sum."""
    visits: dict[str, list[list[Entry]]] = {}
    for entry in sorted(entries, key=lambda entry: entry.at_ms):
        known = visits.setdefault(entry.book[VISITOR], [])
        if known and entry.at_ms - known[-1][-1].at_ms <= GAP_MS:
            known[-1].append(entry)
        else:
            known.append([entry])
    return _summed(
        ((visitor, visit[0].at_ms, visit[-1].at_ms), entry)
        for visitor, known in visits.items()
        for visit in known
        for entry in visit
    )


def _summed(keyed: Iterable[tuple[Any, Entry]]) -> Sums:
    sums: dict[Any, tuple[int, int]] = {}
    _add_up(sums, keyed)
    return sums


def _add_up(sums: dict[Any, tuple[int, int]], keyed: Iterable[tuple[Any, Entry]]) -> None:
    for key, entry in keyed:
        n, total = sums.get(key, (0, 0))
        sums[key] = (n + 1, total + entry.amount)


def difference(found: Sums, wanted: Sums) -> str:
    """What is lost, too much or otherwise, in a line; empty when nothing is."""
    lost, phantom = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    wrong = {key: (found[key], wanted[key]) for key in wanted.keys() & found.keys() if found[key] != wanted[key]}
    if not (lost or phantom or wrong):
        return ""
    return (
        f"{len(lost)} lost {_some(lost)}, {len(phantom)} too much {_some(phantom)}, {len(wrong)} wrong "
        f"(is, should be) {dict(list(wrong.items())[:3])}"
    )


def _some(keys: Iterable[Any]) -> Sequence[Any]:
    return sorted(keys)[:3]


class Feeder(threading.Thread):
    """Writes entries without pause, but when it is told to be quiet."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        super().__init__(name="feeder")
        self._log, self._ledger = log, ledger
        self._wanted = threading.Event()
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self.error: BaseException | None = None
        self.flow()

    def run(self) -> None:
        try:
            with closing(self._log.producer()) as producer:
                while not self._stopping.wait(_PAUSE_S):
                    with self._writing:
                        if not self._wanted.is_set():
                            continue
                        for _ in range(10):
                            partition, entry = self._ledger.add()
                            value = json.dumps(entry._asdict() | {"at": iso(entry.at_ms)}).encode()
                            producer.produce(
                                "journal", entry.account.encode(), value, timestamp_ms=entry.at_ms, partition=partition
                            )
                        producer.flush()
        except BaseException as error:  # noqa: BLE001 - raised again by the test's own thread
            self.error = error

    def flow(self) -> None:
        """Write from now on."""
        self._wanted.set()

    def be_quiet(self) -> None:
        """Write nothing more; what was begun is in the log."""
        with self._writing:
            self._wanted.clear()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Write nothing more for good."""
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error
