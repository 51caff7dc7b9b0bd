"""Pipelines as an application declares them: functions that Spark runs. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stateline.model.topic import Topic


@dataclass(frozen=True, slots=True)
class Windowing:
    """A pipeline's results are of windows or sessions: the struct column `column` (``start``, ``end``: timestamps, as
    Spark's `window` and `session_window` make it) is part of the key. `size_ms`: of a window its size, of a session the
    gap after which it ends."""

    kind: Literal["window", "session"]
    column: str
    size_ms: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A user's function from streaming DataFrames to one; `key` names the columns of the result's key.

    It is called with the `reads`, the `tables` (as `stateline.spark.KTable`) and the `static` topics. A row goes
    to `writes`, or to the one of `branches` that it names. `result` says what topics of its own the pipeline writes:
    the newest row of each key, or every row (`stateline.model.table_topics`). `trigger_ms` is the pause between
    the starts of two micro-batches, None for the configuration's.
    """

    name: str
    function: Callable[..., Any]
    reads: tuple[Topic, ...]
    writes: Topic
    key: tuple[str, ...]
    static: tuple[Topic, ...] = ()
    timestamp: str | None = None
    output_mode: Literal["append", "update", "complete"] = "update"
    tables: tuple[Topic, ...] = ()
    branches: tuple[Topic, ...] = ()
    windowing: Windowing | None = None
    whole_epochs: bool = False
    trigger_ms: int | None = None
    result: Literal["table", "stream"] = "table"

    @property
    def inputs(self) -> tuple[Topic, ...]:
        """All topics that it reads."""
        return (*self.reads, *self.tables, *self.static)

    @property
    def results(self) -> tuple[Topic, ...]:
        """All topics that it writes."""
        return (self.writes, *self.branches)


def epochs_topic(application_id: str, pipeline: str) -> str:
    """The topic of a pipeline's markers (`stateline.deployment.pipelines.epoch_marker`). On disk: never change."""
    return f"{application_id}-{pipeline}-epochs"
