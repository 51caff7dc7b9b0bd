"""What a user's own `StreamingQueryListener` sees of a pipeline: what was read, and what was written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention

from service.spark import departures as d
from stateline import serdes
from stateline.config.loading import load_config
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.spark import KTable
from stateline.spark.drivers.one_pipeline import RESULT
from stateline.spark.drivers.several_pipelines import run_pipelines
from support.run.length import long_only
from support.run.patience import HANGING_S
from support.spark.listening import Listener, listening

tabled = App("flights")
late = tabled.topic("departures", key=serdes.string, value=serdes.json, schema="origin string, delay double")


@tabled.pipeline(reads=[], tables=[late], writes="hourly", key="_key")
def delayed(late: KTable) -> KTable:
    """Departures that are late; of the others tombstones."""
    return late.filter("delay > 10")


class Ran:
    """A log, and a pipeline that has read all of it in some micro-batches; a listener of the user's was told."""

    def __init__(self, session: SparkSession, state: Path) -> None:
        self.log = EmbeddedLog(state / "log.db")
        d.create_topics(self.log)
        self._session = session
        self._config = load_config(
            "flights", overrides=[*d.settings(str(state)), "pipeline.max.offsets.per.trigger=150"]
        )
        self.statuses: list[PipelineStatus] = []

    def run(self, app: App, name: str) -> None:
        given = self._config, self.log
        with listening(self._session.streams) as self.reports:
            run_pipelines(app, [name], *given, available_now=True, session=self._session, progress=self.statuses.append)
        assert len(self.reports) > 1
        assert {report.name for report in self.reports} == {name}


@pytest.fixture
def ran(session: SparkSession, tmp_path: Path) -> Iterator[Ran]:
    ran = Ran(session, tmp_path)
    with closing(ran.log):
        yield ran


def test_a_listener_sees_what_a_micro_batch_read_and_wrote(ran: Ran) -> None:
    d.load(ran.log, d.random_departures(250, seed=8))
    ran.run(d.app, "hourly")
    assert sum(source.numInputRows for report in ran.reports for source in report.sources) == 250
    written = {report.batchId: report.observedMetrics[RESULT].rows for report in ran.reports}
    markers = d.markers(ran.log)
    assert written == {marker.batch_id: marker.rows for marker in markers}
    assert sum(written.values()) == len(list(d.read_all(ran.log, "hourly")))
    assert written == {status.batch_id: status.rows_out for status in ran.statuses}
    ends = {report.batchId: report.sources[0].endOffset for report in ran.reports}
    assert {batch: json.loads(end) for batch, end in ends.items()} == {
        marker.batch_id: json.loads(marker.end_offsets[0] or "{}") for marker in markers
    }
    last = ran.reports[-1].sources[0]
    assert json.loads(last.latestOffset) == json.loads(last.endOffset), "nothing is left to be read"
    assert last.metrics == {}, "Spark asks sources in Python for none"


def test_a_listener_sees_tombstones_among_the_rows(ran: Ran) -> None:
    d.load(ran.log, d.random_departures(250, seed=9))
    ran.run(tabled, "delayed")
    counts: Counter[str] = Counter()
    for report in ran.reports:
        counts.update(report.observedMetrics[RESULT].asDict())
    records = list(d.read_all(ran.log, "hourly"))
    assert counts == {"rows": len(records), "tombstones": sum(record.value is None for record in records)}
    assert 0 < counts["tombstones"] < counts["rows"]


own = App("flights")
some = own.topic("departures", key=serdes.string, value=serdes.json, schema="origin string, delay double")
HEARD = Listener()


@own.pipeline(reads=some, writes="hourly", key="origin", result="stream", output_mode="append")
def heard(rows: DataFrame) -> DataFrame:
    """A pipeline whose function has somebody listen."""
    rows.sparkSession.streams.addListener(HEARD)
    return rows


@long_only("how a listener is added is Spark's own; the tests above have one")
def test_a_pipelines_function_adds_a_listener(ran: Ran, session: SparkSession) -> None:
    d.load(ran.log, d.random_departures(250, seed=10))
    try:
        ran.run(own, "heard")
        assert HEARD.ended.wait(HANGING_S)
    finally:
        session.streams.removeListener(HEARD)
    assert sum(report.observedMetrics[RESULT].rows for report in HEARD.reports) == 250


whole = App("flights")
all_of_them = whole.topic("departures", key=serdes.string, value=serdes.json, schema="origin string, delay double")


@whole.pipeline(reads=all_of_them, writes="hourly", key="origin", output_mode="complete")
def counts(rows: DataFrame) -> DataFrame:
    """How many departures each origin has, all of them each time; the last ones keep what they have."""
    return rows.groupBy("origin").agg(F.least(F.count("*"), F.lit(5)).alias("n"))


def test_of_a_whole_result_a_listener_sees_all_rows_and_the_status_those_that_differ(ran: Ran) -> None:
    d.load(ran.log, d.random_departures(250, seed=11))
    ran.run(whole, "counts")
    given = {report.batchId: report.observedMetrics[RESULT].rows for report in ran.reports}
    written = {status.batch_id: status.rows_out for status in ran.statuses}
    assert sum(written.values()) == len(list(d.read_all(ran.log, "hourly")))
    last = max(given)
    assert given[last] > written[last]
