"""`GET /v1/console/history`: figures of the last hour, for a page that was just opened.

    {"interval_ms", "names": of a point's values, "points": [[at_ms, value, …], …]}    oldest first

Every five seconds, also without an open page, each server process reads the files of this node's workers, the notices
and Positions of the copies here, and its counts of queries. Unknown values are null. A token that may not read every
store sees only its topics, tasks and stores. It does not see commits and queries, because those are of all stores.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from stateline.deployment.stores.topology_file import GLOBAL, GLOBAL_TABLES
from stateline.deployment.workers.figures import Totals, WorkerFigures
from stateline.model.topology import Topology
from stateline.server.contract.answers import json_response
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.guard.caller import concerns, may_read, reads_all
from stateline.server.state.partitions import Partitions
from stateline.server.telemetry.metrics import Metrics
from stateline.server.telemetry.store_metrics import noticed
from stateline.server.telemetry.workers_metrics import FiguresReader
from stateline_store import StoreState, TopicPartition
from stateline_store.clock import now_ms
from stateline_store.task_id import TaskId

INTERVAL_S = 5.0
_KEPT_S = 3600.0
_RATE_S = 30.0  # of topics, which grow by a commit at a time
_QUANTILE_LOOKS = 4  # quantiles are of 15 s: five have few queries

_NAMES = (
    "ingest_per_s", "commits_per_s", "commit_age_ms", "lag", "queries_per_s", "p50_ms", "p99_ms", "restore_remaining",
)  # fmt: skip

_log = logging.getLogger(__name__)

_Input = tuple[int, str]
"""A subtopology, or `GLOBAL`, and a topic that it reads."""


class _Sample(NamedTuple):
    """One look. `lag` is by input. `grown` is by topic: how far it has been committed since the first look.
    `committed_at_ms` and `restoring` have one number per store, in the order of declaration."""

    at_ms: int
    at_s: float
    ingest_per_s: float | None
    commits_per_s: float | None
    queries: QueryTimes
    lag: Mapping[_Input, int]
    grown: Mapping[str, int]
    committed_at_ms: Sequence[int]
    restoring: Sequence[int]


class _Told(NamedTuple):
    """The topics, tasks and stores that the caller may see."""

    everything: bool
    inputs: Set[_Input]
    stores: Sequence[bool]


class TimedCounts(NamedTuple):
    """Counts of queries at a time: pairs of a duration in seconds, and how many took at most that. The last duration is
    None."""

    at_s: float
    buckets: Sequence[tuple[float | None, float]]


class QueryTimes(NamedTuple):
    """`per_s` since the look before, and the quantiles over all given looks; None for not known."""

    per_s: float | None
    p50_ms: float | None
    p99_ms: float | None

    @classmethod
    def between(cls, looks: Sequence[TimedCounts]) -> QueryTimes:
        if len(looks) < 2:
            return cls(None, None, None)
        first, before, now = looks[0], looks[-2], looks[-1]
        counts = [count - was for (_, was), (_, count) in zip(first.buckets, now.buckets, strict=True)]
        edges = [math.inf if edge is None else edge for edge, _ in now.buckets]
        grown = max(0.0, now.buckets[-1][1] - before.buckets[-1][1])
        return cls(
            grown / (now.at_s - before.at_s), _quantile_ms(edges, counts, 0.5), _quantile_ms(edges, counts, 0.99)
        )


def _quantile_ms(edges: Sequence[float], counts: Sequence[float], quantile: float) -> float | None:
    """Interpolate within the bucket, as Prometheus does. None if nothing was counted, or counting started again."""
    if counts[-1] <= 0 or min(counts) < 0:
        return None
    rank = quantile * counts[-1]
    at = next(number for number, count in enumerate(counts) if count >= rank)
    lower, below = (0.0, 0.0) if at == 0 else (edges[at - 1], counts[at - 1])
    if edges[at] == math.inf:
        return 1000 * lower
    return 1000 * (lower + (edges[at] - lower) * (rank - below) / (counts[at] - below))


class History:
    """One per server process, for the event loop's thread."""

    def __init__(self, topology: Topology, partitions: Partitions, figures: FiguresReader, metrics: Metrics) -> None:
        self._topology, self._partitions, self._metrics = topology, partitions, metrics
        self._figures = figures
        self._names = tuple(topology.all_stores)
        self._followed = _stores_to_follow(topology)
        self._samples: deque[_Sample] = deque(maxlen=int(_KEPT_S / INTERVAL_S))
        self._workers: Mapping[str, WorkerFigures] = {}
        self._queries: deque[TimedCounts] = deque(maxlen=_QUANTILE_LOOKS)
        self._offsets: Mapping[TopicPartition, int] = {}
        self._tasks: Set[str] = frozenset()
        self._grown: Counter[str] = Counter()

    async def history(self, request: Request) -> Response:
        """Return what was seen, after `since_ms` if that is given."""
        arguments = Arguments(from_query_string(request.scope["query_string"]))
        arguments.refuse_others(("since_ms",))
        since_ms = arguments.time("since_ms")
        told = self._told(request)
        pairs = zip(itertools.chain([None], self._samples), self._samples, strict=False)
        points = [_point(before, now, told) for before, now in pairs if since_ms is None or now.at_ms > since_ms]
        return json_response({"interval_ms": int(INTERVAL_S * 1000), "names": _NAMES, "points": points})

    def rates(self) -> dict[str, float | None]:
        """Return records committed per second, by topic, over about the last 30 s; None while that is not known."""
        if not self._samples:
            return {}
        newest = self._samples[-1]
        before = next(s for s in self._samples if s.at_s > newest.at_s - _RATE_S - INTERVAL_S / 2)
        return {topic: _grown_per_s(before, newest, (topic,)) for topic in newest.grown}

    def workers(self) -> Iterable[WorkerFigures]:
        """Return the last figures of this node's workers, at most some seconds old."""
        return self._workers.values()

    async def keep(self) -> None:
        while True:
            try:
                self._samples.append(await self._look())
            except Exception:  # noqa: BLE001 - a defect; without this task the charts would end here
                _log.exception("The console's history has a gap")
            await asyncio.sleep(INTERVAL_S)

    async def _look(self) -> _Sample:
        at_ms, at_s = now_ms(), time.monotonic()
        workers, before = await asyncio.to_thread(self._figures.read), self._workers
        self._workers = workers
        self._queries.append(TimedCounts(at_s, await self._metrics.queries()))
        await self._follow()
        committed_at_ms, restoring = Counter[str](), Counter[str]()
        for _, store, _, status in noticed(self._partitions):
            committed_at_ms[store] = max(committed_at_ms[store], status.committed_at_ms)
            restoring[store] += status.restore_remaining if status.state is StoreState.RESTORING else 0
        return _Sample(
            at_ms,
            at_s,
            _per_second(before, workers, lambda totals: totals.processed),
            _per_second(before, workers, lambda totals: totals.commits),
            QueryTimes.between(self._queries),
            _lag(workers),
            dict(self._grown),
            array("q", [committed_at_ms[name] for name in self._names]),
            array("q", [restoring[name] for name in self._names]),
        )

    async def _follow(self) -> None:
        """Count what was committed since the last look, each partition of a topic once."""
        offsets: dict[TopicPartition, int] = {}
        tasks, begun = set(), set()
        for task, store, position in self._partitions.committed(self._followed):
            tasks.add(task)
            self._grown.update(dict.fromkeys(self._followed[store], 0))  # of which there may be nothing
            for source, offset in position:
                offsets[source] = max(offset, offsets.get(source, offset))
                if task in self._tasks:
                    begun.add(source)
            await asyncio.sleep(0)
        for source, offset in offsets.items():
            # A known task without an offset began at 0. The beginning of other tasks is unknown.
            before = self._offsets.get(source, -1 if source in begun else offset)
            self._grown[source.topic] += max(0, offset - before)
        self._offsets, self._tasks = offsets, tasks

    def _told(self, request: Request) -> _Told:
        topology = self._topology
        known = [subtopology for subtopology in topology.subtopologies if concerns(subtopology, request)]
        tables = [table for name, table in topology.global_tables.items() if may_read(request, name)]
        return _Told(
            reads_all(request),
            {(subtopology.ordinal, topic.name) for subtopology in known for topic in subtopology.sources}
            | {(GLOBAL, table.source.name) for table in tables if table.source is not None},
            [may_read(request, name) for name in self._names],
        )


def _stores_to_follow(topology: Topology) -> Mapping[str, Sequence[str]]:
    """Return stores on disk, each with the topics whose commits it shows: one store per topic."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, table in topology.global_tables.items():
        if table.persistent and table.source is not None:
            found[name].append(table.source.name)
    for subtopology in topology.subtopologies:
        for topic in subtopology.sources:
            on_disk = (s for s in subtopology.stores_fed_by(topic.name) if topology.stores[s].persistent)
            if (store := next(on_disk, None)) is not None:
                found[store].append(topic.name)
    return found


def _point(before: _Sample | None, now: _Sample, told: _Told) -> list[float | None]:
    ingest_per_s = now.ingest_per_s
    if not told.everything:
        topics = {topic for _, topic in told.inputs} & now.grown.keys()
        ingest_per_s = None if before is None else _grown_per_s(before, now, topics)
    committed_at_ms = max(itertools.compress(now.committed_at_ms, told.stores), default=0)
    lag = [records for each, records in now.lag.items() if each in told.inputs]
    point = [
        ingest_per_s,
        now.commits_per_s if told.everything else None,
        max(0, now.at_ms - committed_at_ms) if committed_at_ms else None,
        sum(lag) if lag else None,
        *(now.queries if told.everything else (None, None, None)),
        sum(itertools.compress(now.restoring, told.stores)),
    ]
    return [now.at_ms, *(round(value, 3) if isinstance(value, float) else value for value in point)]


def _grown_per_s(before: _Sample, now: _Sample, topics: Set[str] | tuple[str]) -> float | None:
    seconds = now.at_s - before.at_s
    if seconds <= 0:
        return None
    return sum(now.grown[topic] - before.grown.get(topic, 0) for topic in topics) / seconds


def _per_second(
    before: Mapping[str, WorkerFigures], now: Mapping[str, WorkerFigures], of: Callable[[Totals], int]
) -> float | None:
    """Return how fast a total of all workers has grown. Each has its own clock and writes once a second."""
    rates = []
    for name in before.keys() & now.keys():
        elapsed_ms = now[name].updated_at_ms - before[name].updated_at_ms
        grown = of(now[name].totals) - of(before[name].totals)
        rates.append(1000 * max(0, grown) / elapsed_ms if elapsed_ms > 0 else 0.0)  # less: it was started again
    return sum(rates) if rates else None


def _lag(workers: Mapping[str, WorkerFigures]) -> Mapping[_Input, int]:
    found: Counter[_Input] = Counter()
    for figures in workers.values():
        for task, topics in figures.lag.items():
            subtopology = GLOBAL if task == GLOBAL_TABLES else TaskId.parse(task).subtopology
            found.update({(subtopology, topic): records for topic, records in topics.items()})
    return found
