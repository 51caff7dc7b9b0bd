"""Runs a pipeline's function on Spark over an embedded log and collects what leaves it, micro-batch by micro-batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.log.embedded import EmbeddedLog
from stateline.model.pipeline import Pipeline
from stateline.spark.operators.ktable import KTable
from stateline.spark.operators.packing import packed
from stateline.spark.sources.frames import topic_frames

Function = TypeVar("Function", bound=Callable[..., Any])
Results = dict[str, list[dict[str, Any]]]
Record = tuple[str | None, Any, int]
"""Key, value (None: a tombstone), time in milliseconds."""


@dataclass
class OperatorBench:
    """One log in `folder`; each run has a checkpoint of its own unless it goes on with an earlier one."""

    session: SparkSession
    folder: Path
    config: Config
    checkpoints: str
    """The path or URL below which they are."""
    batches: int = field(default=0, init=False)
    observed: list[dict[str, Any]] = field(default_factory=list, init=False)
    """Of each micro-batch of the last run what `observe` gave, by its name."""
    _runs: int = field(default=0, init=False)

    @property
    def log(self) -> EmbeddedLog:
        return EmbeddedLog(self.folder / "log.db")

    def write(self, topic: str, records: Iterable[Record], partitions: int = 3) -> None:
        """Append the records as text keys and JSON values (bytes as they are); the topic is made if it is missing.

        Of three partitions, since those keys of one letter that tests use share one of two.
        """
        log = self.log
        with closing(log.admin()) as admin:
            if topic not in admin.topics():
                admin.create_topics([NewTopic(topic, partitions)])
        with closing(log.producer()) as producer:
            for key, value, at_ms in records:
                data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
                producer.produce(topic, None if key is None else key.encode(), data, timestamp_ms=at_ms)
            producer.flush()

    def run(
        self,
        *pipelines: Pipeline,
        rows_per_batch: int = 1_000_000,
        checkpoint: str | None = None,
        config: Config | None = None,
    ) -> Results:
        """What leaves each of these pipelines, all in one query: row by row, times as ISO text, with the micro-batch's
        number as `batch`. `batches` counts these. Their topics are read in micro-batches of so many records each.
        """
        limited = (config or self.config).model_copy(update={"pipeline_max_offsets_per_trigger": rows_per_batch})
        frames = topic_frames(self.session, limited, self.log)
        streams = cache(frames.stream)  # one source for all that read the topic
        tables = cache(frames.table)
        parts = []
        for pipeline in pipelines:
            given = [streams(t) for t in pipeline.reads], [tables(t) for t in pipeline.tables]
            made = pipeline.function(*given[0], *given[1], *[frames.static(topic) for topic in pipeline.static])
            frame: DataFrame = made.to_stream() if isinstance(made, KTable) else made
            parts.append(frame.select(F.lit(pipeline.name).alias("name"), packed(frame.columns).alias("row")))
        return self._collected(reduce(DataFrame.unionAll, parts), pipelines, checkpoint)

    def _collected(self, frame: DataFrame, pipelines: Sequence[Pipeline], checkpoint: str | None) -> Results:
        found: Results = {pipeline.name: [] for pipeline in pipelines}
        numbers: set[int] = set()

        def collect(batch: DataFrame, number: int) -> None:
            numbers.add(number)
            for row in batch.toArrow().to_pylist():
                found[row["name"]].append({**json.loads(row["row"]), "batch": number})

        self._runs += 1
        writer = frame.writeStream.outputMode(pipelines[0].output_mode).foreachBatch(collect)
        place = f"{self.checkpoints}/{checkpoint or f'checkpoint-{self._runs}'}"
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        self.batches = len(numbers)
        self.observed = [progress.observedMetrics for progress in query.recentProgress]
        return found


def declare(app: App, **settings: Any) -> Callable[[Function], Function]:
    """As `App.pipeline`, with a result topic of the function's name."""

    def register(function: Function) -> Function:
        return app.pipeline(**{"writes": f"{function.__name__}-out", **settings})(function)

    return register


def newest(rows: Iterable[dict[str, Any]], *key: str) -> dict[Any, dict[str, Any]]:
    """The table that these changes make: in order of micro-batch and `_order` or `_offset`, tombstones taken out."""
    table: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["batch"], row.get("_order", row.get("_offset")) or 0)):
        name = tuple(row[column] for column in key) if len(key) > 1 else row[key[0]]
        table.pop(name, None)
        if not row.get("_deleted"):
            table[name] = {c: v for c, v in row.items() if c not in (*key, "batch") and not c.startswith("_")}
    return table
