"""Whole epochs: a micro-batch of a pipeline is committed completely or not at all, over all partitions of a worker."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.config.settings import Config
from stateline.deployment.pipelines.epoch_marker import LOADING
from stateline.dsl.app import App
from stateline.log import Log
from stateline.model.pipeline import epochs_topic
from stateline_store import StateDirectory, TopicPartition
from support.log.log_bench import until
from support.oracles.whole_epochs import PARTITIONS, Pipeline, whole_app
from support.processes.running_worker import Stores, configured, eventually, running
from support.run.length import long_only, on_one_log

on_the_embedded_log = on_one_log(
    "embedded", "test_whatever_is_read_of_a_partition_is_of_whole_epochs is on Kafka as well"
)


@pytest.fixture
def name() -> str:
    return f"app-{uuid4().hex[:8]}"


@pytest.fixture
def pipeline(log: Log, name: str) -> Iterator[Pipeline]:
    found = Pipeline(log, name)
    yield found
    found.producer.close()


class Watcher:
    """What a reader of all partitions sees."""

    def __init__(self, app: App, config: Config, tmp_path: Path) -> None:
        self.epochs = TopicPartition(epochs_topic(app.application_id, "sums"), 0)
        self.stores = Stores(app, config, tmp_path / "scratch")

    def numbers(self, store: str = "newest") -> list[int | None]:
        readers = [self.stores.reader(store, partition) for partition in range(PARTITIONS)]
        return [None if reader is None else reader.offsets.get(self.epochs) for reader in readers]

    def rows(self, store: str = "newest") -> dict[bytes, bytes]:
        return self.stores.rows(store, PARTITIONS)

    def partition(self, number: int) -> tuple[int | None, dict[bytes, bytes]]:
        reader = self.stores.reader("newest", number)
        if reader is None:
            return None, {}
        with reader.range(None, None) as rows:
            return reader.offsets.get(self.epochs), {key: value[8:] for key, value in rows}


@on_the_embedded_log
def test_a_partition_without_rows_of_an_epoch_gets_its_number_too(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app = whole_app(name)
    config = configured(app, tmp_path / "state")
    watcher = Watcher(app, config, tmp_path)
    with running(app, config, log):
        eventually(lambda: watcher.numbers() == [0, 0, 0], "nothing was written, and that is whole")
        pipeline.write({0: 2})
        eventually(lambda: len(set(watcher.numbers())) == 1 and watcher.numbers() != [0, 0, 0], "the first epoch")
        assert len(watcher.rows()) == 2
        pipeline.write({1: 1, 2: 1})
        before = watcher.numbers()
        eventually(lambda: len(set(watcher.numbers())) == 1 and watcher.numbers() != before, "the second epoch")
        assert len(watcher.rows()) == 4
    watcher.stores.close()


@on_the_embedded_log
def test_rows_whose_marker_has_not_come_are_not_committed(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app = whole_app(name)
    config = configured(app, tmp_path / "state")
    watcher = Watcher(app, config, tmp_path)
    with running(app, config, log) as worker:
        pipeline.write({0: 2, 1: 2})
        eventually(lambda: len(watcher.rows()) == 4, "the first epoch")
        pipeline.write({0: 5}, marker=False)
        turns = worker._executor.rounds
        eventually(lambda: worker._executor.rounds > turns + 50, "the worker had time")
        assert watcher.rows() == {b"p0-0": b"0", b"p0-1": b"0", b"p1-0": b"0", b"p1-1": b"0"}
        pipeline.write({2: 1})
        eventually(lambda: len(watcher.rows()) == 8, "all of it with the next marker")
    watcher.stores.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize("counts", [pytest.param(False, marks=long_only("a store more is committed alike")), True])
def test_whatever_is_read_of_a_partition_is_of_whole_epochs(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path, guarantee: str, counts: bool
) -> None:
    """Every row of an epoch has its number: a reader never sees two of them in a partition that all epochs write."""
    app = whole_app(name, counts=counts)
    config = configured(app, tmp_path / "state", processing__guarantee=guarantee, commit__interval__ms=1)
    watcher = Watcher(app, config, tmp_path)
    chosen = random.Random(3)
    with running(app, config, log):
        for _ in range(30):
            pipeline.write({0: 50, 1: 1 + chosen.randrange(3), 2: 50})
            for _ in range(chosen.randrange(30)):
                for partition in (0, 2):
                    number, rows = watcher.partition(partition)
                    assert number in (None, LOADING) or len(set(rows.values())) <= 1, (number, rows)
        eventually(lambda: set(watcher.partition(0)[1].values()) == {b"29"}, "the last epoch")
        eventually(lambda: len(set(watcher.numbers())) == 1, "one number")
    if counts:
        assert watcher.rows("counts")[b"p0-0"] == (30).to_bytes(8, "big")
    watcher.stores.close()


@on_the_embedded_log
def test_a_worker_that_comes_back_goes_on_with_whole_epochs(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app = whole_app(name, counts=True)
    config = configured(app, tmp_path / "state", processing__guarantee="exactly_once_v2")
    watcher = Watcher(app, config, tmp_path)
    for _ in range(3):
        pipeline.write({0: 2, 1: 2, 2: 2})
        with running(app, config, log):
            pipeline.write({0: 2, 1: 2, 2: 2})
            eventually(lambda: set(watcher.rows().values()) == {b"%d" % (pipeline.batches - 1)}, "the newest epoch")
        pipeline.write({0: 1})
    with running(app, config, log):
        eventually(lambda: len(set(watcher.numbers("counts"))) == 1, "one number")
        eventually(lambda: watcher.rows("counts").get(b"p0-0") == (9).to_bytes(8, "big"), "all epochs are counted")
    watcher.stores.close()


@on_the_embedded_log
def test_a_store_that_was_away_gets_the_epochs_that_it_missed_and_is_in_step_again(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app, without = whole_app(name, counts=True), whole_app(name)
    config = configured(app, tmp_path / "state", processing__guarantee="exactly_once_v2")
    watcher = Watcher(app, config, tmp_path)
    for batches, declared in ((2, app), (5, without), (7, app)):
        with running(declared, config, log):
            while pipeline.batches < batches:
                pipeline.write({0: 2, 1: 2, 2: 2})
            newest = b"%d" % (batches - 1)
            eventually(lambda: set(watcher.rows().values()) == {newest}, "the newest epoch")  # noqa: B023
            if declared is app:
                counted = {batches.to_bytes(8, "big")}
                eventually(lambda: {*watcher.rows("counts").values()} == counted, "all are counted")  # noqa: B023
                eventually(lambda: len({*watcher.numbers(), *watcher.numbers("counts")}) == 1, "one number")
    watcher.stores.close()


@on_the_embedded_log
def test_a_store_that_lost_its_disk_is_loading_until_it_is_in_step(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app = whole_app(name)
    config = configured(app, tmp_path / "state")
    pipeline.write({0: 2, 1: 2, 2: 2})
    watcher = Watcher(app, config, tmp_path)
    with running(app, config, log):
        eventually(lambda: len(watcher.rows()) == 6, "the first epoch")
    watcher.stores.close()
    directory = StateDirectory(config.state_dir, name).application
    shutil.rmtree(next(directory.glob("*_1")))
    watcher = Watcher(app, config, tmp_path)
    with running(app, config, log):
        eventually(lambda: len(set(watcher.numbers())) == 1 and None not in watcher.numbers(), "in step")
        assert len(watcher.rows()) == 6
    watcher.stores.close()


@on_the_embedded_log
def test_an_epoch_that_is_larger_than_the_memory_for_it_is_committed_in_parts_that_nobody_reads(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    app = whole_app(name)
    config = configured(app, tmp_path / "state", statestore__uncommitted__max__bytes=20_000)
    watcher = Watcher(app, config, tmp_path)
    seen: set[int | None] = set()
    with running(app, config, log):
        pipeline.write({0: 3_000, 1: 1})
        eventually(lambda: seen.update(watcher.numbers()) or len(watcher.rows()) == 3_001, "all of it")  # type: ignore[func-returns-value]
        eventually(lambda: len(set(watcher.numbers())) == 1 and LOADING not in watcher.numbers(), "in step")
    watcher.stores.close()


@on_the_embedded_log
def test_rows_from_before_whole_epochs_were_asked_for_are_of_none(
    log: Log, name: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Nobody knows where they end, so a store that is read from the beginning has no number, which would be its word
    that nothing was written."""
    app = whole_app(name)
    config = configured(app, tmp_path / "state")
    watcher = Watcher(app, config, tmp_path)
    pipeline.says_ends = False
    pipeline.write({0: 2, 1: 1, 2: 1})
    with running(app, config, log) as worker:
        eventually(lambda: worker._executor.rounds > 100, "the worker had time")
        assert set(watcher.numbers()) <= {None, LOADING}
        pipeline.says_ends = True
        pipeline.write({0: 1})
        eventually(lambda: len(set(watcher.numbers())) == 1 and watcher.numbers()[0] not in (None, LOADING), "an epoch")
        assert len(watcher.rows()) == 4
    watcher.stores.close()


@on_the_embedded_log
def test_a_worker_goes_on_when_a_pipeline_starts_over(log: Log, name: str, pipeline: Pipeline, tmp_path: Path) -> None:
    app = whole_app(name)
    config = configured(app, tmp_path / "state")
    watcher = Watcher(app, config, tmp_path)
    with running(app, config, log):
        for _ in range(5):
            pipeline.write({0: 2, 1: 1, 2: 1})
        eventually(lambda: set(watcher.rows().values()) == {b"4"}, "the fifth epoch")
        pipeline.producer.close()
        with closing(log.admin()) as admin:
            admin.delete_topics([pipeline.out, pipeline.epochs, f"{name}-in"])
            until(lambda: not {pipeline.out, pipeline.epochs, f"{name}-in"} & set(admin.topics()))
        anew = Pipeline(log, name)
        for _ in range(3):
            anew.write({0: 1, 1: 1, 2: 1})
        eventually(lambda: watcher.rows() == {b"p%d-0" % number: b"2" for number in range(3)}, "the third epoch anew")
        anew.producer.close()
    watcher.stores.close()
