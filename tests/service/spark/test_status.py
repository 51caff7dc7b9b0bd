"""What is said of a pipeline: from Spark's reports to numbers, and to the file that others read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from stateline.deployment.pipelines.declaration import PipelineDeclaration
from stateline.deployment.pipelines.status import MOST_BYTES, PipelineStatus, read_status
from stateline.spark.drivers.status import StatusFile, StatusListener, lag_of
from stateline.spark.sink.checkpoint import claim, keep_declaration
from stateline.spark.sink.checkpoint_folder import LocalFolder
from stateline.spark.sink.epoch_writer import BatchResult

QUERY = "8a5c0f1e-5d0b-4c6f-9d6c-0d7a3a3a9f10"


class Event:
    """What Spark hands to a listener, as far as it is looked at."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


def progress(batch_id: int = 3, **members: Any) -> StreamingQueryProgress:
    """A report as Spark writes it."""
    source: dict[str, Any] = {
        "description": "log", "startOffset": None, "endOffset": '{"in":{"0":40,"1":7,"id":"x"}}',
        "latestOffset": '{"in":{"0":45,"1":7,"id":"x"}}', "numInputRows": 12, "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0, "metrics": {},
    }  # fmt: skip
    report = {
        "id": QUERY, "runId": QUERY, "name": "delays", "timestamp": "2026-11-21T10:00:00.000Z", "batchId": batch_id,
        "batchDuration": 400, "numInputRows": 12, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0,
        "durationMs": {"triggerExecution": 412, "addBatch": 300, "walCommit": 8, "setOffsetRange": 1},
        "eventTime": {"watermark": "2013-01-01T05:00:00.000Z"}, "stateOperators": [], "sources": [source],
        "sink": {"description": "foreachBatch", "numOutputRows": -1, "metrics": {}},
        "observedMetrics": {"skipped.in": {"records": 2}},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(report | members)


class Told:
    """A listener, what it told, and the file that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.reports: list[PipelineStatus] = []
        self.written: BatchResult | None = None
        self.file = StatusFile("delays", directory)
        self.listener = self._listener()
        self.listener.onQueryStarted(Event(id=QUERY, name="delays"))

    def _listener(self) -> Any:  # its events are not Spark's own
        return StatusListener(
            self.file,
            self.reports.append,
            lambda number: self.written if self.written and self.written.batch_id == number else None,
        )


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_lag_is_what_a_topic_has_behind_what_was_read() -> None:
    end, latest = '{"a":{"0":5,"1":9}}', '{"a":{"0":7,"1":9,"2":3,"id":"t"},"b":{"0":0}}'
    assert lag_of([(end, latest)]) == {"a": 5, "b": 0}
    assert lag_of([(None, '{"a":{"0":4}}')]) == {"a": 4}, "nothing was read yet"


def test_of_two_that_read_one_topic_the_slower_counts() -> None:
    latest = '{"a":{"0":7}}'
    assert lag_of([('{"a":{"0":6}}', latest), ('{"a":{"0":1}}', latest)]) == {"a": 6}


@pytest.mark.parametrize("latest", [None, "null", "17", '"2013"', '[{"a": 1}]', '{"a": 5}', "no JSON"])
def test_a_source_that_is_no_topic_has_no_lag(latest: str | None) -> None:
    assert lag_of([('{"a":{"0":1}}', latest)]) == {}


def test_a_micro_batch_is_told_with_its_lag_its_steps_and_what_it_wrote(told: Told, tmp_path: Path) -> None:
    told.written = BatchResult(
        3, rows=9, tombstones=2, dead_lettered=1, compute_ms=70, arrange_ms=5, produce_ms=6, commit_ms=7
    )
    told.listener.onQueryProgress(Event(progress=progress()))
    (status,) = told.reports
    assert (status.state, status.batch_id, status.rows_in, status.skipped, status.duration_ms) == (
        "running", 3, 12, 2, 412,
    )  # fmt: skip
    assert (status.rows_out, status.tombstones, status.dead_lettered) == (9, 2, 1)
    assert (status.lag, status.lag_by_topic) == (5, {"in": 5})
    assert status.watermark_ms == 1_357_016_400_000
    steps = {"addBatch": 300, "walCommit": 8, "compute": 70, "arrange": 5, "produce": 6, "commit": 7}
    assert status.steps_ms == steps
    written = read_status(tmp_path)
    assert written is not None
    assert written == status
    assert written.pid == os.getpid()


def test_totals_add_up_over_micro_batches(told: Told) -> None:
    for batch_id, rows in ((3, 9), (4, 1)):
        told.written = BatchResult(batch_id, rows=rows)
        told.listener.onQueryProgress(Event(progress=progress(batch_id)))
    assert told.reports[-1].totals == {
        "batches": 2, "rows_in": 24, "rows_out": 10, "tombstones": 0, "skipped": 4, "dead_lettered": 0,
    }  # fmt: skip


def test_what_the_sink_says_of_another_micro_batch_is_not_told(told: Told) -> None:
    told.written = BatchResult(2, rows=9)
    told.listener.onQueryProgress(Event(progress=progress(3)))
    assert told.reports[-1].rows_out == 0


def test_a_pipeline_without_anything_to_read_waits_and_has_no_lag(told: Told) -> None:
    told.listener.onQueryProgress(Event(progress=progress()))
    told.listener.onQueryIdle(Event(id=QUERY))
    assert (told.file.now.state, told.file.now.lag, told.file.now.lag_by_topic) == ("waiting", 0, {"in": 0})
    assert told.file.now.batch_id == 3


def test_another_query_of_the_session_is_none_of_its_business(told: Told) -> None:
    other = "00000000-0000-0000-0000-000000000000"
    told.listener.onQueryProgress(Event(progress=progress(id=other)))
    told.listener.onQueryIdle(Event(id=other))
    assert (told.file.now.state, told.reports) == ("starting", [])


def test_a_stop_in_order_leaves_nothing_and_nothing_is_written_after_it(told: Told, tmp_path: Path) -> None:
    assert read_status(tmp_path) is not None
    told.file.remove()
    told.listener.onQueryProgress(Event(progress=progress()))
    assert read_status(tmp_path) is None


def test_what_a_killed_driver_leaves_counts_as_a_restart_and_keeps_its_error(tmp_path: Path) -> None:
    StatusFile("delays", tmp_path).change(state="restarting", restarts=2, last_error="no", last_error_at_ms=5)
    again = StatusFile("delays", tmp_path).now
    assert (again.state, again.restarts, again.last_error, again.last_error_at_ms) == ("starting", 3, "no", 5)


@pytest.mark.parametrize("text", ['{"pipeline":"delays","pid":4711,"state":"running"}', '{"pipeline', ""])
def test_a_file_of_another_version_or_a_damaged_one_is_no_obstacle(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert StatusFile("delays", tmp_path).now.restarts == 0


def test_a_status_that_cannot_be_written_stops_nothing(told: Told, tmp_path: Path) -> None:
    (tmp_path / "status.json").unlink()
    (tmp_path / "status.json").mkdir()
    assert told.file.change(state="waiting").state == "waiting"


def test_who_may_read_a_pipelines_files_is_said_by_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        StatusFile("delays", tmp_path)
        checkpoint = LocalFolder(tmp_path / "checkpoint")
        claim(checkpoint, "app", "delays")
        keep_declaration(
            checkpoint,
            PipelineDeclaration(
                reads=[],
                tables=[],
                key=[],
                windowing=None,
                result="table",
                output_mode="update",
                operators=[],
                topics={},
            ),
        )
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {
        "status.json": 0o664, "checkpoint": 0o775, "stateline.json": 0o664, "declaration.json": 0o664,
    }  # fmt: skip


def test_of_a_long_error_the_beginning_is_told(tmp_path: Path) -> None:
    status = StatusFile("delays", tmp_path).change(state="failed", last_error="x" * 100_000)
    assert status.last_error == "x" * 8_000
    assert len(status.encode()) < MOST_BYTES
