"""`stateline adopt` with directories that real Kafka Streams of several versions wrote: stopped, running and killed."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from conformance.java_left import GLOBAL, RECORDS, SETTINGS, Left, restored, rows
from conformance.java_state import INPUTS, KEPT, PARTITIONS
from stateline import serdes, stores
from stateline.cli.adopt.adoption import adopt
from stateline.cli.adopt.checks import Candidate, checked_offsets
from stateline.cli.adopt.java_directory import JavaDirectory
from stateline.dsl.app import App
from stateline.log import Record
from stateline.log.interface import NewTopic
from stateline.log.kafka import KafkaLog
from stateline_store import LockedError, StateDirectory, TopicPartition, TopologyError, TransactionalStore
from stateline_store.adoption.java_store import JavaStore
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.rows.headers import NO_HEADERS
from stateline_store.rows.segments import PREFIX
from stateline_store.scan import EVERY_KEY
from support.kafka.java_streams import TRANSACTIONAL, JavaStreams, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, read_all
from support.run.length import long_or_short

HEADERS, STAGED = "4.4.0 with headers", "4.4.0 transactional"
VERSIONS = long_or_short(("3.6.2", "3.9.1", "4.0.0", "4.3.1", "4.4.0", HEADERS, STAGED), ("4.4.0",))
MORE_SETTINGS = {HEADERS: {"dsl.store.format": "HEADERS"}, STAGED: {TRANSACTIONAL: "true"}}


@pytest.fixture(scope="module", params=VERSIONS)
def left(
    request: pytest.FixtureRequest, kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Left]:
    version = request.param.split()[0]
    needed(lambda: class_path(version))
    run, folder = f"adopt-{re.sub('[. ]', '-', request.param)}", tmp_path_factory.mktemp("adopt")
    inputs = {topic: f"{run}-{topic}" for topic in (*INPUTS, GLOBAL)}
    (folder / "java").mkdir()
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        create(log, dict.fromkeys(inputs.values(), PARTITIONS))
        with closing(log.admin()) as admin:  # uncompacted: the records are of 2023, so that no lag keeps older versions
            settings = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(2**63 - 1)}
            admin.create_topics([NewTopic(f"{run}-java-versioned-changelog", PARTITIONS, settings)])
        with JavaStreams(
            log.bootstrap_servers, f"{run}-java", (*KEPT, GLOBAL), folder / "java",
            prefix=f"{run}-", partitions=PARTITIONS, settings={**SETTINGS, **MORE_SETTINGS.get(request.param, {})},
            version=version,
        ) as java:  # fmt: skip
            made = Left(log, java, inputs, folder / "java", folder / "killed", "", request.param == HEADERS)
            java.start()
            made.feed(0)
            app = made.app(f"{run}-early")
            with pytest.raises(LockedError) as refused:
                adopt(app, made.config(app, folder / "early"), [made.stopped], dry_run=False)
            made.refusal = str(refused.value)
            shutil.copytree(made.stopped, made.killed)
            java.stop()
            java.start()  # a global table is read to its end at a start
            java.stop()
            yield made


def contents(directory: Path) -> dict[str, tuple[str, int, int]]:
    """The digest, the time of the last change and the mode of every file and directory."""
    found = {}
    for path in sorted([directory, *directory.rglob("*")]):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = digest, path.stat().st_mtime_ns, path.stat().st_mode
    return found


def stored(left: Left, record: Record) -> bytes | None:
    """The value of a record in a table of Java's that may have headers: they are empty (`docs/adopt.md`)."""
    return NO_HEADERS + record.value if record.value is not None and left.headers else record.value


def test_an_adopted_store_has_every_row_of_its_changelog_and_goes_on_from_there(left: Left, tmp_path: Path) -> None:
    adopted, plain = left.app("adopting"), left.app("restoring")
    to, beside = left.config(adopted, tmp_path / "adopted"), left.config(plain, tmp_path / "restored")
    before = contents(left.stopped)
    report = adopt(adopted, to, [left.stopped], dry_run=False)
    assert contents(left.stopped) == before
    assert [each.why for each in report.outcomes] == [""] * len(left.declarations()) * PARTITIONS
    restored(left, plain, beside, tmp_path / "readers")

    def compare() -> None:
        for each, partition in product(left.declarations(), range(PARTITIONS)):
            ours, theirs = rows(adopted, to, each.name, partition), rows(plain, beside, each.name, partition)
            assert ours == theirs, (each.name, partition)

    compare()
    left.java.start()
    left.feed(RECORDS)
    left.java.stop()
    restored(left, adopted, to, tmp_path / "readers2")
    restored(left, plain, beside, tmp_path / "readers3")
    compare()


def test_nothing_is_adopted_while_the_java_application_runs(left: Left) -> None:
    assert "is in use by process" in left.refusal
    assert str(left.stopped / left.java.application_id) in left.refusal


def test_no_store_of_a_killed_application_is_adopted(left: Left, tmp_path: Path) -> None:
    app = left.app("killed")
    before = contents(left.killed)
    report = adopt(app, left.config(app, tmp_path), [left.killed], dry_run=False)
    assert contents(left.killed) == before
    assert {each.store for each in report.outcomes} == {each.name for each in left.declarations()}
    for each in report.outcomes:
        assert "There is no offset of" in each.why or "was open when" in each.why


def test_a_store_that_is_declared_otherwise_is_refused_and_the_others_are_adopted(left: Left, tmp_path: Path) -> None:
    declared = {each.name: each for each in left.declarations()}
    definitions = [
        declared["plain"],
        stores.key_value("count", key=serdes.string, value=serdes.int64),
        replace(declared["tumbling"], retention_ms=10 * declared["tumbling"].retention_ms),
        replace(declared["versioned"], retention_ms=10 * declared["versioned"].retention_ms),
        stores.key_value("session", key=serdes.string, value=serdes.int64),
        stores.timestamped_key_value("absent", key=serdes.string, value=serdes.int64),
    ]
    app = left.app("otherwise", definitions)
    app.external_store(declared["table"], of=left.java.application_id, changelog=left.inputs["table"])
    report = adopt(app, left.config(app, tmp_path), [left.stopped], dry_run=False)
    whys = {each.store: each.why for each in report.outcomes}
    assert whys.pop("plain") == ""
    for name, why in {
        "count": f"with {'headers' if left.headers else 'timestamps'} in Java",
        "tumbling": "Declare the kind and the retention that Java has",
        "versioned": "Declare the history that Java has",
        "session": "windows or sessions in Java",
        "table": left.inputs["table"],
    }.items():
        assert why in whys[name]
    assert any(note.startswith("Store absent has no files there.") for note in report.notes)
    assert any(note.startswith("Not declared here, and not adopted: duplicates-") for note in report.notes)
    again = adopt(app, left.config(app, tmp_path), [left.stopped], dry_run=False)
    assert {each.outcome for each in again.outcomes if each.store == "plain"} == {"exists"}


def test_a_dry_run_writes_nothing(left: Left, tmp_path: Path) -> None:
    app = left.app("dry")
    report = adopt(app, left.config(app, tmp_path / "state"), [left.stopped], dry_run=True)
    assert {each.outcome for each in report.outcomes} == {"would be adopted"}
    assert not (tmp_path / "state").exists()


def test_a_store_behind_the_start_or_beyond_the_end_of_its_changelog_is_refused(left: Left) -> None:
    definition = left.declarations()[0]
    built = definition.build()
    assert isinstance(built, TransactionalStore)
    topic = left.java.changelog(definition.name)
    [(task, files), *_] = JavaDirectory(left.stopped / left.java.application_id).stores(
        definition.name, is_global=False
    )
    candidate = Candidate(definition, topic, task, files, task, 0, frozenset())
    with JavaStore(files) as java:
        offset = java.offsets[TopicPartition(topic, 0)]
        for bounds, why in (
            ((offset + 2, offset + 9), "were deleted"),
            ((0, offset), "created again"),
        ):
            with pytest.raises(TopologyError, match=why):
                checked_offsets(candidate, java, built.layout, {TopicPartition(topic, 0): bounds})
        exact = checked_offsets(candidate, java, built.layout, {TopicPartition(topic, 0): (offset + 1, offset + 1)})
        assert exact == {TopicPartition(topic, 0): offset}


def test_a_global_table_is_adopted_for_each_worker(left: Left, tmp_path: Path) -> None:
    app = App(left.java.application_id)
    app.global_table(left.inputs[GLOBAL], key=serdes.string, value=serdes.string, store=GLOBAL)
    settings = {"dsl__store__format": "HEADERS"} if left.headers else {}
    config = configured(app, tmp_path, bootstrap__servers=left.log.bootstrap_servers, num__workers=2, **settings)
    app.configure(config)
    report = adopt(app, config, [left.stopped], dry_run=False)
    assert [each.task for each in report.outcomes] == ["global/worker-0", "global/worker-1"]
    if any(each.why for each in report.outcomes):  # before 4.3, Java writes the offsets of small tables seldom
        assert left.java.version < "4.3"
        assert not (left.stopped / left.java.application_id / "global/.checkpoint").exists()
        assert all("There is no offset of" in each.why for each in report.outcomes)
        return
    newest = {r.key: (r.timestamp_ms, stored(left, r)) for r in read_all(left.log, left.inputs[GLOBAL], PARTITIONS)}
    expected = {key: PREFIX.pack(at) + value for key, (at, value) in newest.items() if value is not None}
    for number in range(2):
        path = StateDirectory(config.state_dir, config.application_id).store(
            f"global/worker-{number}", GLOBAL, timestamped=True
        )
        with OfflineStore(path) as store, store.scan(EVERY_KEY) as scan:
            assert dict(scan) == expected
            assert set(store.commit.offsets) == {TopicPartition(left.inputs[GLOBAL], p) for p in range(PARTITIONS)}
