"""`stateline check`: what it says a start would do, a worker that is started does; and it changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from stateline import App, StoreView, TumblingWindows, serdes, stores
from stateline.cli.check.report import Report, report_as_text, topology_tree
from stateline.cli.check.run import check
from stateline.cli.main import main
from stateline.cli.reset.scope import Asked, check_scope, scope_of
from stateline.config.settings import Config
from stateline.deployment.stores.resets import ResetWork, begun, say_reset
from stateline.log import Log
from stateline.log.interface import Admin, NewTopic
from stateline.model.graph import graph_of
from stateline.serde.plain import Serde
from stateline.worker.loop.worker import Worker
from stateline_store import InvalidArgumentError, StatelineError, TopicPartition
from support.apps.counting_app import PARTITIONS, counting
from support.processes.running_worker import configured, create, eventually, produce, running
from support.run.length import on_one_log

EMBEDDED = pytest.mark.parametrize("bootstrap", ["embedded"], indirect=True)


def run_once(app: App, config: Config, log: Log) -> None:
    """A worker that has read thirty records, also of repartition topics, and is gone."""
    create(log, {f"{app.application_id}-in": PARTITIONS, f"{app.application_id}-alone": 1})
    end = produce(log, f"{app.application_id}-in", [(b"k%d" % (n % 7), b"v%d" % (n % 3), n) for n in range(30)])
    with running(app, config, log), closing(log.admin()) as admin:
        wanted = {place: offset + 1 for place, offset in end.items()}
        eventually(lambda: admin.committed(app.application_id, wanted) == wanted, "the worker has read all")
        again = [
            TopicPartition(name, n)
            for name, info in admin.topics().items()
            if name.startswith(app.application_id) and name.endswith("-repartition")
            for n in range(info.partitions)
        ]
        eventually(
            lambda: (
                {place: offset for place, offset in admin.committed(app.application_id, again).items() if offset}
                == {place: end for place, end in admin.committed_ends(again).items() if end}
            ),
            "the worker has read it again",
        )


def said(report: Report, level: str) -> list[str]:
    return [finding.message for finding in report.findings if finding.level == level]


def own_topics(admin: Admin, application_id: str) -> set[str]:
    """Those of this application: the broker has topics of other tests, which come and go."""
    return {name for name in admin.topics() if name.startswith(application_id)}


def files(directory: Path) -> dict[str, str]:
    """Every file below it, with a digest of what is in it."""
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def records(report: Report) -> dict[str, object]:
    return {str(row["store"]): row["records"] for row in report.stores}


def test_what_is_missing_is_refused_and_nothing_is_made(
    application_id: str, config: Config, log: Log, tmp_path: Path
) -> None:
    report = check(counting(application_id), config)
    assert not report.would_start
    assert said(report, "refused")[0].startswith(f"Missing source topics: {application_id}-alone, {application_id}-in.")
    assert not config.state_dir.exists()
    with closing(log.admin()) as admin:
        assert not own_topics(admin, application_id)


def test_no_log_is_made_to_be_asked(application_id: str, tmp_path: Path) -> None:
    app = counting(application_id)
    report = check(app, configured(app, tmp_path / "state", bootstrap__servers="embedded"))
    assert not report.would_start
    assert list(tmp_path.iterdir()) == []


@on_one_log("embedded", "test_topic_counts.py counts the records of both")
def test_after_a_worker_was_there_nothing_is_restored_and_without_its_disk_the_changelogs_are(
    application_id: str, config: Config, log: Log
) -> None:
    app = counting(application_id)
    run_once(app, config, log)
    report = check(app, config)
    assert report.would_start, report_as_text(report)
    by_name = {row["store"]: row for row in report.stores}
    assert records(report) == {"newest": 0, "counts": 0, "by_value": 0, "alone": 0}
    assert (by_name["counts"]["partitions_here"], by_name["counts"]["approximate_entries"]) == (PARTITIONS, 7)
    assert by_name["alone"]["begins"] == "from where it is, as input"
    shutil.rmtree(config.state_dir / application_id)
    lost = check(app, config)
    assert lost.would_start, report_as_text(lost)
    assert records(lost)["counts"] == held(log, f"{application_id}-counts-changelog") > 0
    assert records(lost)["newest"] == 30
    assert {row["begins"] for row in lost.stores if row["records"]} == {"from the beginning"}


@on_one_log("embedded", "the same files and topics on both")
def test_nothing_is_changed_beside_a_worker_or_after_it(
    application_id: str, config: Config, log: Log, tmp_path: Path
) -> None:
    app = counting(application_id)
    run_once(app, config, log)
    with closing(log.admin()) as admin, running(app, config, log) as worker:
        eventually(lambda: worker.tasks.are_settled and bool(worker.tasks.running), "the worker runs")
        topics = own_topics(admin, application_id)
        assert check(app, config).would_start
        assert own_topics(admin, application_id) == topics
        assert len(admin.members(application_id)) == 1
    before = files(tmp_path)
    assert check(app, config).would_start
    assert files(tmp_path) == before


# How the scene of `run_once` is changed, what is said of it, and whether a worker is refused.
def grown(application_id: str, log: Log) -> None:
    with closing(log.admin()) as admin:
        admin.delete_topics([f"{application_id}-counts-changelog"])
        admin.create_topics([NewTopic(f"{application_id}-counts-changelog", PARTITIONS + 1)])


def changelog_gone(application_id: str, log: Log) -> None:
    with closing(log.admin()) as admin:
        admin.delete_topics([f"{application_id}-counts-changelog"])


def source_gone(application_id: str, log: Log) -> None:
    with closing(log.admin()) as admin:
        admin.delete_topics([f"{application_id}-alone"])


def reset_begun(application_id: str, log: Log) -> None:
    say_reset(log, application_id, None, begun(None, 0, ResetWork(everything=True)))


def nothing(application_id: str, log: Log) -> None: ...


CHANGES: dict[str, tuple[Callable[[str, Log], None], bool, str]] = {
    "nothing": (nothing, False, ""),
    "a changelog of other partitions": (grown, False, "counts-changelog has 3 partitions"),
    "a changelog that is missing": (changelog_gone, False, "is missing: the topic was deleted"),
    "a topic that is missing": (source_gone, False, "Missing source topic: "),
    "a reset that was not completed": (reset_begun, False, "is being started over, and that was not completed"),
    "a store of other types": (nothing, True, "holds values of int64, and is declared with values of string"),
}


@EMBEDDED
@pytest.mark.parametrize("disk", ["here", "lost"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_refused_is_what_a_worker_refuses(
    change: str, disk: str, application_id: str, config: Config, log: Log
) -> None:
    alter, as_text, refusal = CHANGES[change]
    run_once(counting(application_id), config, log)
    alter(application_id, log)
    if disk == "lost":
        shutil.rmtree(config.state_dir / application_id)
    app = counting(application_id, as_text=as_text)
    report = check(app, config)
    refused = said(report, "refused")
    raised = refusal_of(Worker(app, config, log, instance="worker-0"))
    assert report.would_start == (raised is None), (refused, raised)
    if raised is not None:
        assert refusal in " ".join(refused)
    assert not (change == "a changelog that is missing" and "it gets what comes from now on" in str(report))


@EMBEDDED
def test_a_new_store_behind_a_new_repartition_topic_lacks_what_was_read_before(
    application_id: str, config: Config, log: Log
) -> None:
    app = counting(application_id)
    run_once(app, config, log)
    by_value = app.stream(f"{application_id}-in").group_by(lambda key, value: value, name="by-value")
    by_value.count("of_value")
    (warning,) = said(check(app, config), "warning")
    assert f"of_value of subtopology 3 is new, and {application_id}-in was read before" in warning
    assert warning.endswith("--subtopology 0 --subtopology 2 --subtopology 3")


@EMBEDDED
def test_a_new_store_needs_history_and_one_that_is_not_declared_any_more_stays(
    application_id: str, config: Config, log: Log
) -> None:
    run_once(counting(application_id), config, log)
    report = check(counting(application_id, more=True), config)
    assert report.would_start
    assert said(report, "warning") == [
        f"again of subtopology 0 is new, and {application_id}-in was read before: it gets what comes from now on. To "
        "fill it from the beginning, stop the application everywhere: stateline reset MODULE:APP --subtopology 0 "
        "--subtopology 2"
    ]
    without = App(application_id)
    without.table(f"{application_id}-in", key=serdes.string, value=serdes.string, store="newest")
    notes = said(check(without, config), "note")
    assert [note.partition(" holds ")[2] for note in notes if "0_1" in note] == [
        "store 'counts', which the application has not: it stays."
    ]


@EMBEDDED
def test_stores_whose_rows_get_headers_at_the_next_start_are_named(
    application_id: str, config: Config, log: Log
) -> None:
    run_once(counting(application_id), config, log)
    app = counting(application_id)
    app.configure(config.model_copy(update={"dsl_store_format": "HEADERS"}))
    report = check(app, config)
    assert report.would_start
    notes = [note for note in said(report, "note") if "rewritten" in note]
    assert "Store 'newest' of task 0_0 keeps no headers yet: its rows are rewritten when a worker opens it." in notes


@EMBEDDED
def test_a_store_of_other_types_is_told_once_with_the_reset_that_is_not_refused(
    application_id: str, config: Config, log: Log, tmp_path: Path
) -> None:
    def by_value(value: Serde) -> App:
        app = App(application_id)
        app.target = "counts:app"
        rows = app.stream(f"{application_id}-in", key=serdes.string, value=serdes.string)
        grouped = rows.group_by(lambda key, value: value, name="values")
        grouped.count("counts")
        grouped.aggregate(lambda: None, lambda key, value, old: None, "last", value=value)
        return app

    run_once(by_value(serdes.string), config, log)
    app = by_value(serdes.json)
    (refused,) = said(check(app, config), "refused")
    command = "stateline reset counts:app --subtopology 0 --subtopology 1"
    assert refused.endswith(f"start over without its data: {command}")
    scope = scope_of(app.topology(), Asked(subtopologies=(0, 1)))
    check_scope(app.topology(), scope, deleted=[], with_records=[])
    with pytest.raises(InvalidArgumentError, match="start all of it over, with --subtopology 0 --subtopology 1"):
        scope_of(app.topology(), Asked(stores=("last",)))
    with pytest.raises(StatelineError, match=f"holds values of string.*{command}"):
        Worker(app, config, log, instance="worker-0").run()


@EMBEDDED
def test_types_of_a_schema_registry_that_no_setting_names_are_refused_by_check_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bootstrap: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (
        "from stateline import App, serdes",
        "app = App('nowhere')",
        "app.table('rows', value=serdes.avro('\"long\"'))",
    )
    (tmp_path / "without_registry.py").write_text("\n".join(lines))
    told = "'rows' has avro(long): There is no Schema Registry: set schema.registry.url"
    given = ["without_registry:app", "--set", f"bootstrap.servers={bootstrap}"]
    assert main(["check", *given]) == 1
    assert f"refused: {told}" in capsys.readouterr().out
    assert main(["run", *given]) == 2
    assert told in capsys.readouterr().err
    main(["check", *given, "--set", "schema.registry.url=http://localhost:1"])
    assert told not in capsys.readouterr().out


@EMBEDDED
def test_topics_that_do_not_fit_together_and_one_that_forgets_are_told(
    application_id: str, config: Config, log: Log
) -> None:
    app = App(application_id)
    table = app.table("left", key=serdes.string, value=serdes.string)
    right = app.table("right", key=serdes.string, value=serdes.string)
    app.ktable(table).join(app.ktable(right), lambda one, other: one, "both")
    with closing(log.admin()) as admin:
        admin.create_topics([NewTopic("left", 2, {"cleanup.policy": "delete", "retention.ms": "1000"})])
        admin.create_topics([NewTopic("right", 3, {"cleanup.policy": "compact"})])
    report = check(app, config)
    assert (
        "Subtopology 0: Topics that are processed together need equal partition counts, but left has 2, right has 3"
        in (" ".join(said(report, "refused")))
    )
    assert any(warning.startswith("Topic left deletes old records") for warning in said(report, "warning"))


def test_while_the_log_is_away_the_disk_is_told_and_whether_a_start_works_is_not_known(
    application_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "log.db"
    file.write_bytes(b"")  # it is only being made
    app = counting(application_id)
    report = check(app, configured(app, tmp_path / "state", bootstrap__servers=f"embedded:{file}"))
    assert not report.would_start
    assert said(report, "unknown")[0].startswith("The log does not answer: ")
    assert "is not known: see above." in report_as_text(report)


def test_the_command_ends_with_2_for_what_cannot_be_loaded_1_for_what_would_not_start_and_0_for_what_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"module_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        "from stateline import App, serdes\napp = App('shop')\napp.table('orders', key=serdes.string)\n"
    )
    assert main(["check", "nosuch:app"]) == 2
    assert main(["check", f"{name}:app"]) == 1
    assert main(["topics", f"{name}:app", "--create"]) == 0
    capsys.readouterr()
    assert main(["check", f"{name}:app", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["would_start"]
    assert told["stores"][0]["store"] == "orders"


def test_the_tree_has_every_node_and_edge_of_the_topology() -> None:
    def declared() -> App:
        app = App("shop")
        prices = app.table("prices", key=serdes.string, value=serdes.json)
        seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.int64))
        orders = app.stream("orders", key=serdes.string, value=serdes.json)
        priced = orders.filter(lambda k, v: True).join(prices, lambda order, price: order)
        priced.group_by_key().windowed_by(TumblingWindows(MINUTE)).count("per_minute")
        priced.to("priced")

        @app.process("orders", stores=[seen], name="see")
        def see(record: object, seen: StoreView) -> None: ...

        @app.pipeline(reads="orders", writes="ranked", key="a", name="rank")
        def rank(orders: object) -> object: ...

        return app

    assert list(topology_tree(graph_of(declared().topology()))) == DRAWN.splitlines()


def refusal_of(worker: Worker) -> StatelineError | None:
    """Why it does not come to take records; None when it does."""
    try:
        worker.begin()
        worker.open_tasks()
    except StatelineError as error:
        with suppress(StatelineError):  # a store that it has closed
            worker.leave()
        return error
    worker.leave()
    return None


def held(log: Log, topic: str) -> int:
    """How many offsets a topic has."""
    with closing(log.admin()) as admin:
        bounds = admin.bounds(admin.topics([topic])[topic].places)
    return sum(end - first for first, end in bounds.values())


MINUTE = timedelta(minutes=1)
DRAWN = """\
Subtopology 0
  topic prices
    → table prices (timestamped_key_value, string → json)
  topic orders
    → processor see
        ─ store seen (key_value, string → int64)
    → filter
        → join prices
            ─ table prices (timestamped_key_value, string → json)
            → count per_minute
                ─ store per_minute (timestamped_window, string → int64)
            → to priced
                → topic priced
Pipeline rank
  topic orders
    → pipeline rank (update mode, on Spark)
        → topic ranked
"""
