"""From a topic to the DataFrame that a pipeline's function gets.

A topic **with a schema** (Spark DDL of its JSON values) comes as the schema's columns, and `_key`,
`_timestamp`, `_partition`, `_offset` of the record. Tombstones are left out: they have no columns. A value
that is not JSON of the schema fails the pipeline and names the record, unless
``deserialization.exception.handler`` is ``skip``: then it is left out and counted (the metric `skipped` of
the pipeline's progress). ``dead-letter`` fails as well: a streaming frame cannot write to a second topic,
and losing the record in silence is worse.

A topic **without a schema** comes as `key`, `value`, `timestamp`, `topic`, `partition`, `offset`.

Keys (and values without a schema) are read by the topic's serde: string and json as text, int32, int64 and
float64 as numbers, others as binary. A **static** topic is the same as a batch: the newest record of each
key, read anew in each micro-batch, without keys whose newest record is a tombstone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.types import DoubleType, StructType

from stateline.config import Config
from stateline.log import EmbeddedLog, Log
from stateline.spark.embedded_source import FORMAT, EmbeddedLogSource
from stateline.topology import Topic
from stateline_store import ConfigurationError, TopologyError

SKIPPED = "skipped"
"""The observed metric of a stream that counts records left out: ``<SKIPPED>.<topic>``."""

_BAD = "_stateline_bad_record"


@dataclass(frozen=True)
class TopicFrames:
    """Makes the frames of one application's topics. Use it on the thread that owns the session."""

    session: SparkSession
    source_format: str
    options: dict[str, str] = field(default_factory=dict)
    max_rows_per_batch: int = 200_000
    fail_on_bad_records: bool = True

    def stream(self, topic: Topic) -> DataFrame:
        """The topic from its earliest record on. Raises `TopologyError` for a schema that Spark refuses."""
        reader = self.session.readStream.format(self.source_format).options(**self.options)
        reader = reader.option("subscribe", topic.name).option("maxOffsetsPerTrigger", self.max_rows_per_batch)
        if self.source_format == "kafka":
            reader = reader.option("startingOffsets", "earliest").option("failOnDataLoss", "true")
        return self._shaped(topic, _loaded(reader), count_skipped=True)

    def static(self, topic: Topic) -> DataFrame:
        """The newest record of each key, as of each micro-batch."""
        reader = self.session.read.format(self.source_format).options(**self.options)
        reader = reader.option("subscribe", topic.name)
        if self.source_format == FORMAT:
            return self._shaped(topic, _loaded(reader.option("newest", "true")))
        rows = _loaded(reader).where(F.col("key").isNotNull())
        columns = [F.col(name) for name in ("key", "value", "topic", "partition", "offset", "timestamp")]
        # A key's records share a partition, so that their offsets tell which is the newest.
        newest = rows.groupBy("key").agg(F.max_by(F.struct(*columns), F.col("offset")).alias("newest"))
        return self._shaped(topic, newest.select("newest.*").where(F.col("value").isNotNull()))

    def _shaped(self, topic: Topic, rows: DataFrame, *, count_skipped: bool = False) -> DataFrame:
        if topic.schema is None:
            names = ("timestamp", "topic", "partition", "offset")
            key, value = _decoded("key", topic.key.name), _decoded("value", topic.value.name)
            return rows.select(key.alias("key"), value.alias("value"), *names)
        schema = _schema(topic)
        parsed = F.from_json(
            F.col("value").cast("string"), schema.add(_BAD, "string"), {"columnNameOfCorruptRecord": _BAD}
        )
        rows = rows.where(F.col("value").isNotNull()).withColumn("json", parsed)
        # An empty value gives no struct at all; anything else that is unreadable is kept in the extra column.
        is_bad = F.col("json").isNull() | F.col(f"json.{_BAD}").isNotNull()
        if self.fail_on_bad_records:
            rows = rows.where(F.when(is_bad, _failure()).otherwise(F.lit(True)))
        else:
            if count_skipped:
                rows = rows.observe(f"{SKIPPED}.{topic.name}", F.count_if(is_bad).alias("records"))
            rows = rows.where(~is_bad)
        fields = [F.col("json").getField(name).alias(name) for name in schema.names if name != _BAD]
        meta = [F.col(name).alias(f"_{name}") for name in ("timestamp", "partition", "offset")]
        return rows.select(*fields, _decoded("key", topic.key.name).alias("_key"), *meta)


def topic_frames(session: SparkSession, config: Config, log: Log, *, max_rows_per_batch: int = 200_000) -> TopicFrames:
    """The frames of this log's topics; settings ``spark.kafka.*`` go to Spark's Kafka source as ``kafka.*``."""
    fails = config.deserialization_exception_handler != "skip"
    if isinstance(log, EmbeddedLog):
        session.dataSource.register(EmbeddedLogSource)
        path = {"path": str(Path(log.path).resolve())}
        return TopicFrames(session, FORMAT, path, max_rows_per_batch, fails)
    passed_on = {k.removeprefix("spark."): v for k, v in config.spark.items() if k.startswith("spark.kafka.")}
    options = {
        "kafka.bootstrap.servers": config.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        **passed_on,
    }
    return TopicFrames(session, "kafka", options, max_rows_per_batch, fails)


def _loaded(reader: object) -> DataFrame:
    try:
        frame: DataFrame = reader.load()  # type: ignore[attr-defined]  # both of Spark's readers have it
    except AnalysisException as error:
        if "kafka" not in str(error):
            raise
        raise ConfigurationError(
            "Spark has no Kafka connector: set spark.jars to a folder with its jars (see pom.xml beside this "
            "module), or to its Maven coordinates, org.apache.spark:spark-sql-kafka-0-10_2.13:<version>."
        ) from error
    return frame


def _schema(topic: Topic) -> StructType:
    try:
        schema = StructType.fromDDL(topic.schema or "")
    except (ParseException, AnalysisException) as error:
        reason = str(error).strip().splitlines()[0]
        raise TopologyError(f"Topic {topic.name!r}: Spark refuses its schema {topic.schema!r}: {reason}") from error
    if not isinstance(schema, StructType):
        raise TopologyError(
            f"Topic {topic.name!r}: its schema {topic.schema!r} is one type: name its fields, "
            "as in 'a string, b double'."
        )
    return schema


def _failure() -> Column:
    """Fails the query with the place and the beginning of the record; typed as a boolean."""
    where = [F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" offset "), F.col("offset")]
    message = F.concat(
        F.lit("The value of record "),
        *where,
        F.lit(" is not JSON of the topic's schema: "),
        F.substring(F.col("value").cast("string"), 1, 200),
        F.lit(". Correct the schema, or set deserialization.exception.handler=skip."),
    )
    return F.raise_error(message).cast("boolean")


def _decoded(column: str, serde: str) -> Column:
    """The column as the serde's type; bytes of another length than the type's become null."""
    binary = F.col(column)
    if serde in ("string", "json"):
        return binary.cast("string")
    if serde == "int64":
        return F.when(F.length(binary) == 8, F.conv(F.hex(binary), 16, -10).cast("bigint"))
    if serde == "int32":
        unsigned = F.when(F.length(binary) == 4, F.conv(F.hex(binary), 16, 10).cast("bigint"))
        return F.when(unsigned >= 1 << 31, unsigned - (1 << 32)).otherwise(unsigned).cast("int")
    if serde == "float64":
        return F.udf(_float64, DoubleType())(binary)
    return binary


def _float64(data: bytes | None) -> float | None:
    if data is None or len(data) != 8:
        return None
    number: float = struct.unpack(">d", data)[0]
    return number
