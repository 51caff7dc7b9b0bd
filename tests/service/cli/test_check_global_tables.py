"""`stateline check`, of global tables: what workers here have on disk, what they would read, and how it is drawn."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from stateline import App, StoreView, serdes, stores
from stateline.cli.check.report import report_as_text, topology_tree
from stateline.cli.check.run import check
from stateline.cli.state import stores as stores_command
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.log import Log
from stateline.model.graph import graph_of
from stateline.worker.loop.worker import Worker
from stateline_store import StatelineError
from support.apps.global_app import build
from support.processes.running_worker import configured, create, eventually, produce, running

pytestmark = pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)


@pytest.fixture
def config(bootstrap: str, tmp_path: Path) -> Config:
    return configured(build(), tmp_path / "state", bootstrap__servers=bootstrap)


def run_once(config: Config, log: Log) -> None:
    """A worker that has read four codes, and is gone; a fifth has come since."""
    create(log, {"codes": 2, "rows": 1, "out": 1})
    produce(log, "codes", [(b"k%d" % n, b"v", n) for n in range(4)])
    with running(build(), config, log) as worker:
        eventually(lambda: worker.tasks.are_settled and bool(worker.tasks.running), "the worker runs")
    produce(log, "codes", [(b"k9", b"v", 9)])


def started(worker: Worker) -> None:
    worker.begin()
    worker.open_tasks()


def row(app: App, config: Config) -> Row:
    return next(row for row in check(app, config).stores if row["kind"] == "global table")


def test_a_global_table_of_other_types_is_refused_as_by_a_worker(config: Config, log: Log) -> None:
    run_once(config, log)
    assert check(build(), config).would_start
    app = build(value=serdes.int64)
    (refused,) = [each.message for each in check(app, config).findings if each.level == "refused"]
    assert "holds values of string, and is declared with values of int64" in refused
    assert refused.endswith("start over without its data: stateline reset MODULE:APP --store codes")
    worker = Worker(app, config, log, instance="worker-0")
    with pytest.raises(StatelineError, match=r"holds values of string.*reset MODULE:APP --store codes"):
        worker.run()


def test_a_global_table_on_disk_goes_on_from_where_it_is(config: Config, log: Log) -> None:
    create(log, {"codes": 2, "rows": 1, "out": 1})
    begins = row(build(), config)
    assert (begins["begins"], begins["records"]) == ("nothing to restore, on each worker", 0)
    run_once(config, log)
    there = row(build(), config)
    assert there["begins"] == "from where it is, on each worker"
    assert (there["partitions"], there["partitions_here"], there["approximate_entries"], there["records"]) == (
        2,
        2,
        4,
        1,
    )
    in_memory = row(build(persistent=False), config)
    assert (in_memory["begins"], in_memory["records"]) == ("from the beginning, on each worker", 5)


def test_the_list_of_stores_has_global_tables_and_says_of_which_worker(config: Config, log: Log) -> None:
    run_once(config, log)
    (listed,) = json.loads(stores_command.stores(build(), config, as_json=True))
    assert (listed["store"], listed["kind"], listed["subtopology"]) == ("codes", "global table", None)
    (told,) = listed["workers"].values()
    assert told["approximate_entries"] == 4
    assert sum(offset + 1 for offset in told["position"]["codes"].values()) == 4
    header, row = stores_command.stores(build(), config, as_json=False).splitlines()
    shown = dict(zip(header.split(), row.replace("global table", "global_table").split(), strict=False))
    assert shown["partitions"] == "2"
    assert "2 of 2" in report_as_text(check(build(), config))
    assert "entries" not in header + report_as_text(check(build(), config)), "an estimate is no number of entries"


def test_a_global_table_whose_topic_was_made_anew_is_read_from_the_beginning(config: Config, log: Log) -> None:
    run_once(config, log)
    with closing(log.admin()) as admin:
        admin.delete_topics(["codes"])
    create(log, {"codes": 2})
    produce(log, "codes", [(b"k1", b"v", 1)])
    anew = row(build(), config)
    assert (anew["begins"], anew["records"]) == ("from the beginning: it is emptied first, on each worker", 1)


def test_a_join_is_shown_with_its_global_table(config: Config) -> None:
    assert list(topology_tree(graph_of(build().topology()))) == DRAWN.splitlines()


def test_what_the_clock_calls_is_drawn_by_itself(config: Config) -> None:
    app = App("shop")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.int64))

    @app.process("orders", stores=[seen], name="see")
    def see(record: object, seen: StoreView) -> None: ...

    @app.punctuate(every=timedelta(seconds=1), on="wall_clock_time", stores=[seen], name="tidy")
    def tidy(timestamp_ms: int, seen: StoreView) -> None: ...

    assert list(topology_tree(graph_of(app.topology()))) == CLOCK.splitlines()


DRAWN = """\
Subtopology 0
  topic rows
    → left_join codes
        ─ global table codes (timestamped_key_value, string → string)
        → to out
            → topic out
Global table codes, whole on every worker
  topic codes
    → global table codes (timestamped_key_value, string → string)
"""
CLOCK = """\
Subtopology 0
  topic orders
    → processor see
        ─ store seen (key_value, string → int64)
  processor tidy (every 1000 ms of wall_clock_time)
    ─ store seen (key_value, string → int64)
"""
