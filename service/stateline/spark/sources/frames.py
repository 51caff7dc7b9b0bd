"""Makes the DataFrame or table of a topic for a pipeline's function.

A topic **with a schema** (Spark DDL of its JSON values) has the schema's columns, and `_key`, `_timestamp`,
`_partition`, `_offset`. Tombstones are left out, since they have no columns. A topic **without a schema** has `key`,
`value`, `timestamp`, `topic`, `partition`, `offset`. A **static** topic is the same as a batch: the newest record of
each key as of each micro-batch, without deleted keys. A topic as a **table** is a `KTable` of `_key` and the schema's
columns, or `value` without a schema.

The topic's serde decodes keys, and values without a schema: string, json and uuid to text, int32, int64 and float64 to
INT, BIGINT and DOUBLE, datetime to TIMESTAMP. Others, such as Avro and custom serdes, stay binary: Spark decodes them
in Python only, with a `udf` of the pipeline.

**Unreadable records** have bytes of another length than the number's, text that is not UTF-8, a value that is not JSON
of the schema, no key in a table, or no `timestamp` that the topic declares (`event_time`). They fail the pipeline, with
their place. With ``deserialization.exception.handler=skip`` they are left out and counted (the metric `skipped`). With
``dead-letter`` the sink also writes them to the dead-letter topic (`stateline.spark.sink.dead_letters`), except those
of static topics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import StructType

from stateline.config.settings import Config
from stateline.log import Log
from stateline.model.topic import Topic
from stateline.spark.columns import DELETED
from stateline.spark.connector import no_connector
from stateline.spark.operators.ktable import KTable, table_of
from stateline.spark.operators.packing import struct_type
from stateline.spark.session import is_local
from stateline.spark.sources.embedded_offsets import OffsetsJson
from stateline.spark.sources.embedded_source import FORMAT, EmbeddedLogSource
from stateline.spark.sources.event_time import with_event_time, without_time
from stateline.spark.sources.followed_topic import AS_OF, FollowedTopicSource, as_of_now
from stateline.spark.sources.followed_topic import FORMAT as FOLLOWED_FORMAT
from stateline_store import TopologyError

SKIPPED = "skipped"
"""The observed metric of a stream's skipped records: ``<SKIPPED>.<topic>``."""
_TABLE_METRIC = f"{SKIPPED}.table"  # a topic may be read as both

_EARLIEST = -2  # of a partition, to Spark's Kafka source
_BAD = "_stateline_bad_record"
_SHOWN = 200  # characters of a record in an error
_LENGTHS = {"int32": 4, "int64": 8, "float64": 8, "datetime": 8}
_TEXTS = ("string", "json", "uuid")
_WAY_OUT = "Correct the topic's declaration, or set deserialization.exception.handler=skip."


@dataclass(frozen=True)
class TopicFrames:
    """Makes the frames of one application's topics. Use it on the thread that owns the session."""

    session: SparkSession
    source_format: str
    options: dict[str, str]
    max_rows_per_batch: int
    fail_on_bad_records: bool
    followed: dict[str, str]
    """Options of `FollowedTopicSource`."""

    def stream(self, topic: Topic) -> DataFrame:
        """Return the topic from its earliest record on. Raises `TopologyError` for a schema that Spark refuses."""
        return self._shaped(topic, self._records(topic), count_skipped=True)

    def table(self, topic: Topic) -> KTable:
        """Return the topic's changes from its earliest record on. Raises `TopologyError` for a schema that Spark
        refuses."""
        readable, values = self._read(topic, self._records(topic), _no_key(), metric=_TABLE_METRIC)
        meta = [F.col(name).alias(f"_{name}") for name in ("timestamp", "offset")]
        key, deleted = _decoded("key", topic.key.name).alias("_key"), F.col("value").isNull().alias(DELETED)
        return table_of(readable.select(key, *values, deleted, *meta), "_key")

    def _records(self, topic: Topic) -> DataFrame:
        reader = self.session.readStream.format(self.source_format).options(**self.options)
        reader = reader.option("subscribe", topic.name).option("maxOffsetsPerTrigger", self.max_rows_per_batch)
        if self.source_format == "kafka":
            reader = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "true")
        return with_event_time(topic, _loaded(reader))

    def static(self, topic: Topic) -> DataFrame:
        """Return the newest record of each key, as of each micro-batch, which reads only new records."""
        reader = self.session.read.format(FOLLOWED_FORMAT).options(**self.followed)
        return self._shaped(topic, with_event_time(topic, reader.option("subscribe", topic.name).load()))

    def settle_statics(self, log: Log, topics: Iterable[Topic]) -> None:
        """Let jobs of this thread read these static topics as of now. Raises `DoesNotExistError` if one is gone."""
        if names := [topic.name for topic in topics]:
            self.session.sparkContext.setLocalProperty(AS_OF, as_of_now(log, names))

    def _shaped(self, topic: Topic, rows: DataFrame, *, count_skipped: bool = False) -> DataFrame:
        key, metric = _decoded("key", topic.key.name), SKIPPED if count_skipped else None
        if topic.schema is None:
            readable, values = self._read(topic, rows, metric=metric)
            return readable.select(key.alias("key"), *values, "timestamp", "topic", "partition", "offset")
        readable, values = self._read(topic, rows.where(F.col("value").isNotNull()), metric=metric)
        meta = [F.col(name).alias(f"_{name}") for name in ("timestamp", "partition", "offset")]
        return readable.select(*values, key.alias("_key"), *meta)

    def _read(
        self, topic: Topic, rows: DataFrame, *problems: Column, metric: str | None
    ) -> tuple[DataFrame, list[Column]]:
        """Return the readable rows, without these problems either, and the columns of their values."""
        if topic.schema is None:
            bad_value, values = _problem("value", topic), [_decoded("value", topic.value.name).alias("value")]
        else:
            rows, bad_value = _with_json(topic, rows)
            values = [F.col("json").getField(name).alias(name) for name in _schema(topic).names]
        return self._readable(topic, rows, _problem("key", topic), bad_value, *problems, metric=metric), values

    def bad_records(self, topic: Topic, start: OffsetsJson, end: OffsetsJson, *, table: bool = False) -> DataFrame:
        """Return a batch of the unreadable records between these offsets of a checkpoint: `partition`, `offset` and
        `problem`, the reason."""
        rows = self._between(topic, start, end)
        if topic.schema is None:
            problems = [_problem("key", topic), _problem("value", topic)]
        else:
            rows, not_json = _with_json(topic, rows if table else rows.where(F.col("value").isNotNull()))
            problems = [_problem("key", topic), not_json]
        problem = F.coalesce(*problems, *([_no_key()] if table else []), *_no_time(topic))
        return rows.select("partition", "offset", problem.alias("problem")).where(F.col("problem").isNotNull())

    def _between(self, topic: Topic, start: OffsetsJson, end: OffsetsJson) -> DataFrame:
        reader = self.session.read.format(self.source_format).options(**self.options)
        if self.source_format == "kafka":  # needs the offset of every partition
            partitions = [int(partition) for partition in end[topic.name]]
            start = {topic.name: {**dict.fromkeys(end[topic.name], _EARLIEST), **start.get(topic.name, {})}}
            reader = reader.option("assign", json.dumps({topic.name: partitions}))
        else:
            reader = reader.option("subscribe", topic.name)
        reader = reader.option("startingOffsets", json.dumps(start)).option("endingOffsets", json.dumps(end))
        return with_event_time(topic, _loaded(reader))

    def _readable(self, topic: Topic, rows: DataFrame, *problems: Column, metric: str | None) -> DataFrame:
        """Return the rows without these problems, or with a condition that fails the query at one."""
        problem = F.coalesce(*problems, *_no_time(topic))
        if self.fail_on_bad_records:
            failure = F.raise_error(problem).cast("boolean")
            return rows.where(F.when(problem.isNotNull(), failure).otherwise(~without_time(topic, "skip")))
        if metric is not None:
            rows = rows.observe(f"{metric}.{topic.name}", F.count_if(problem.isNotNull()).alias("records"))
        return rows.where(problem.isNull() & ~without_time(topic, "skip"))


def topic_frames(session: SparkSession, config: Config, log: Log) -> TopicFrames:
    """Return the frames of this log's topics. Settings ``spark.kafka.*`` go to Spark's Kafka source as ``kafka.*``."""
    session.dataSource.register(FollowedTopicSource)
    terms = config.pipeline_max_offsets_per_trigger, config.deserialization_exception_handler == "fail"
    followed = {"state.dir": str(config.state_dir.resolve())}
    # A task costs more than most partitions. A cluster's capacity is unknown. Spark's own master counts, since
    # `spark-submit` may override the configuration.
    if is_local(session.sparkContext.master or ""):
        followed["tasks"] = str(session.sparkContext.defaultParallelism)
    if log.embedded_file is not None:
        session.dataSource.register(EmbeddedLogSource)
        path = str(log.embedded_file.resolve())
        followed |= {"bootstrap.servers": f"embedded:{path}"}
        return TopicFrames(session, FORMAT, {"path": path}, *terms, followed)
    passed_on = {k.removeprefix("spark."): v for k, v in config.spark.items() if k.startswith("spark.kafka.")}
    options = {
        "kafka.bootstrap.servers": config.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        **passed_on,
    }
    # One option per setting: Spark hides those with a password in their name.
    clients = {"consumer": config.consumer, "admin": config.admin}
    given = {f"{client}.{name}": str(value) for client, each in clients.items() for name, value in each.items()}
    followed |= {"bootstrap.servers": options["kafka.bootstrap.servers"], **given}
    return TopicFrames(session, "kafka", options, *terms, followed)


def _loaded(reader: object) -> DataFrame:
    try:
        frame: DataFrame = reader.load()  # type: ignore[attr-defined]  # both of Spark's readers have it
    except AnalysisException as error:
        if "kafka" not in str(error):
            raise
        raise no_connector() from error
    return frame


def _with_json(topic: Topic, rows: DataFrame) -> tuple[DataFrame, Column]:
    """Return the rows with the value in the struct `json`, and errors for values that are not."""
    schema = _schema(topic).add(_BAD, "string")
    value = F.col("value").cast("string")
    parsed = F.from_json(value, schema, {"columnNameOfCorruptRecord": _BAD})
    # An empty value gives no struct. Other unreadable text is kept in the extra column.
    is_unread = F.col("json").isNull() | F.col(f"json.{_BAD}").isNotNull()
    is_bad = F.col("value").isNotNull() & (is_unread | _holds_no_number(value))
    text = F.substring(value, 1, _SHOWN)
    # Spark would repeat the parsing for each use of `json`, three times. It does not move nondeterministic columns.
    once = F.when(F.spark_partition_id() >= 0, parsed)
    return rows.withColumn("json", once), F.when(is_bad, _refusal("value", "is not JSON of the topic's schema", text))


def _holds_no_number(value: Column) -> Column:
    """Return whether the text has NaN or an infinity as a number. Spark reads them, but JSON lacks them. In quotes they
    are text, which Spark reads as a double if the schema has one."""
    is_named = value.contains("NaN") | value.contains("Inf") | value.contains("INF")  # rare
    outside_texts = F.regexp_replace(F.regexp_replace(value, r"(?s)\\.", ""), '"[^"]*"', "")
    return F.when(is_named, outside_texts.rlike("NaN|Inf|INF")).otherwise(F.lit(False))


def _schema(topic: Topic) -> StructType:
    try:
        return struct_type(topic.schema or "")
    except TopologyError as error:
        raise TopologyError(f"Topic {topic.name!r}: {error}") from error


def _problem(column: str, topic: Topic) -> Column:
    """Return the error of bytes for the topic's serde, null for good or absent bytes."""
    serde = topic.key.name if column == "key" else topic.value.name
    binary = F.col(column)
    shown = F.substring(F.hex(binary), 1, _SHOWN)
    if serde in _LENGTHS:
        is_bad = F.length(binary) != _LENGTHS[serde]
        what = F.concat(F.lit(f"is not an {serde}, it has "), F.length(binary), F.lit(" bytes"))
        return F.when(is_bad, _refusal(column, what, shown))
    if serde in _TEXTS:
        return F.when(~F.is_valid_utf8(binary.cast("string")), _refusal(column, "is not UTF-8 text", shown))
    return F.lit(None).cast("string")


def _no_time(topic: Topic) -> list[Column]:
    if topic.event_time is None:
        before_1970 = F.col("timestamp") < F.timestamp_millis(F.lit(0))
        shown = F.unix_millis("timestamp").cast("string")
        return [F.when(before_1970, _refusal("timestamp", "is before 1970", shown))]
    shown = F.coalesce(F.substring(F.col("value").cast("string"), 1, _SHOWN), F.lit("it is a deletion"))
    return [
        F.when(
            without_time(topic, "fail"),
            _refusal("value", f"has no valid timestamp ({topic.event_time.described})", shown),
        )
    ]


def _no_key() -> Column:
    where = [F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" offset "), F.col("offset")]
    message = F.concat(
        F.lit("Record "), *where, F.lit(" has no key, and a row of a table needs one. "), F.lit(_WAY_OUT)
    )
    return F.when(F.col("key").isNull(), message)


def _refusal(column: str, what: str | Column, shown: Column) -> Column:
    where = [F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" offset "), F.col("offset"), F.lit(" ")]
    reason = F.lit(what) if isinstance(what, str) else what
    return F.concat(F.lit(f"The {column} of record "), *where, reason, F.lit(": "), shown, F.lit(f". {_WAY_OUT}"))


def _decoded(column: str, serde: str) -> Column:
    """Return the column as the serde's type. Bytes of another length become null."""
    binary = F.col(column)
    if serde in _TEXTS:
        return binary.cast("string")
    if serde not in _LENGTHS:
        return binary
    # Within the JVM: a Python function would cost ten times as much per row.
    fits = F.length(binary) == _LENGTHS[serde]
    if serde == "int32":
        unsigned = F.when(fits, F.conv(F.hex(binary), 16, 10).cast("bigint"))
        return F.when(unsigned >= 1 << 31, unsigned - (1 << 32)).otherwise(unsigned).cast("int")
    bits = F.when(fits, F.conv(F.hex(binary), 16, -10).cast("bigint"))
    if serde == "datetime":
        return F.timestamp_millis(bits)
    return bits if serde == "int64" else _float64(bits)


def _float64(bits: Column) -> Column:
    """Return the double of these bits (IEEE 754), by exact steps."""
    fraction = bits.bitwiseAND(F.lit((1 << 52) - 1))
    exponent = F.shiftrightunsigned(bits, 52).bitwiseAND(F.lit(0x7FF))
    sign = F.when(bits < 0, F.lit(-1.0)).otherwise(F.lit(1.0))
    part = fraction.cast("double") * F.lit(2.0**-52)
    normal = (part + F.lit(1.0)) * F.pow(F.lit(2.0), (exponent - 1023).cast("double"))
    small = part * F.lit(2.0**-1022)
    special = F.when(fraction == 0, F.lit(float("inf"))).otherwise(F.lit(float("nan")))
    return sign * F.when(exponent == 0x7FF, special).when(exponent == 0, small).otherwise(normal)
