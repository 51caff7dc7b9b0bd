"""``<application>/instances/<instance>.figures``: a worker's counters, for `/metrics`.

    {"instance", "updated_at_ms", "totals": {…}, "rates": {…}, "ratios": {…}, "commit_latency": {…},
     "skipped", "dead_lettered", "dropped_by_operators", "uncommitted_bytes", "uncommitted_max_bytes",
     "block_cache_usage", "lag": {task: {topic: offsets}}, "dropped": {task: puts},
     "rocksdb": {task: {store: {property: value}}},
     "standbys": {task: {"records": that its copy lacks, "ms": for how long it has lacked some; null when unknown}},
     "stores": {task: {store: {"commit_rate", "commit_latency_avg_s", "commit_latency_max_s", "uncommitted_bytes"}}},
     "steps": {step: {"taken": records, "dropped": {reason: records}}}}

On disk: never change. Indented by two, replaced by rename once a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from stateline.deployment.workers.instance_file import instances_directory

_SUFFIX = ".figures"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters since the worker's start. Seconds are seconds of work."""

    commits: int
    forced_commits: int
    commit_seconds: float
    processed: int
    process_seconds: float
    restored: int
    followed: int
    follow_seconds: float
    promotions: int
    promotion_seconds: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over the last 30 seconds."""

    commits: float
    processed: float
    restored: float
    followed: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """Shares of the last 30 seconds."""

    commit: float
    process: float


@dataclass(frozen=True, slots=True)
class CommitLatency:
    """Over the last 30 seconds; None without a commit."""

    avg_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True)
class StandbyLag:
    """How many records a standby, or a future one, lacks, and for how long. None if unknown."""

    records: int | None
    ms: int | None


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """A store of a task, as in KIP-892: calls of `commit` per second and their latency over the last 30 seconds, None
    without one. `uncommitted_bytes` is about the size of the next commit, 0 for a store without transactions."""

    commit_rate: float
    commit_latency_avg_s: float | None
    commit_latency_max_s: float | None
    uncommitted_bytes: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Records that a step has got since the worker's start, and its dropped ones by reason."""

    taken: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker's figures, with the members of the file. `lag`, `dropped`, `rocksdb`, `standbys` and `stores` are by
    task; ``global`` has global tables. Unknown figures are left out. `uncommitted_max_bytes` is -1 without a limit."""

    instance: str
    updated_at_ms: int
    totals: Totals
    rates: Rates
    ratios: Ratios
    commit_latency: CommitLatency
    skipped: int
    dead_lettered: int
    dropped_by_operators: int
    uncommitted_bytes: int
    uncommitted_max_bytes: int
    block_cache_usage: int
    lag: Mapping[str, Mapping[str, int]]
    dropped: Mapping[str, int]
    rocksdb: Mapping[str, Mapping[str, Mapping[str, int]]]
    standbys: Mapping[str, StandbyLag]
    stores: Mapping[str, Mapping[str, StoreFigures]]
    steps: Mapping[str, StepFigures]

    def encode(self) -> bytes:
        return orjson.dumps(self, option=orjson.OPT_INDENT_2)


def figures_path(application: Path, instance: str) -> Path:
    return instances_directory(application) / f"{instance}{_SUFFIX}"


def instance_of(name: str) -> str | None:
    """The instance whose figures are in the file of this name, None for another file."""
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None
