"""A Kafka Streams application's stores over HTTP are what the application itself shows of them, though it was killed in
the middle of its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from conformance.java_state import (
    MORE_RETENTION_MS,
    PARTITIONS,
    PHANTOM,
    Scene,
    declarations,
    end_of,
    of_http,
    of_java,
    scene,
)
from stateline.deployment.topics import other_settings
from stateline.dsl.app import App
from stateline.log.interface import NewTopic, Record
from stateline.model.external_stores import settings_of_changelog
from stateline.model.store_definition import StoreDefinition
from stateline_store import TopicPartition
from stateline_store.rows.headers import join_headers
from support.kafka.java_streams import PEERS, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import Stores, configured, eventually, running
from support.run.length import long_only

pytestmark = long_only("test_adopt.py restores each store from its changelog, and finds what Java has on disk")

NAMES = [definition.name for definition in declarations()]


@pytest.fixture(scope="module", params=[*PEERS])
def java(
    request: pytest.FixtureRequest, kafka_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    needed(class_path)
    with scene(kafka_broker.bootstrap_servers, request.param, tmp_path_factory.mktemp("java-state")) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_a_store_over_http_has_every_row_that_java_shows_and_no_other(name: str, java: Scene) -> None:
    definition, changes = java.declared[name], java.changes(name)
    bound = end_of(changes)
    for partition in range(PARTITIONS):
        of_partition = [row for row in java.dumps[name] if row.partition == partition]
        stream_time_ms = max(record.timestamp_ms for record in changes if record.partition == partition)
        theirs = of_java(definition, of_partition, stream_time_ms)
        assert theirs, "Java has nothing to compare with"
        assert of_http(java.client, definition, partition, bound) == theirs


def test_the_comparison_had_deleted_and_expired_rows_to_leave_out(java: Scene) -> None:
    for name in ("table", "session", "versioned"):
        assert any(record.value is None for record in java.changes(name)), name
    for name in ("tumbling", "plainwindow", "session", "duplicates-this-join-store"):
        assert len({record.key for record in java.changes(name)}) > len(java.dumps[name]), name


def test_the_settings_of_changelogs_are_those_that_tell_a_wrong_declaration(java: Scene) -> None:
    with closing(java.log.admin()) as admin:
        for name, definition in java.declared.items():
            wanted = settings_of_changelog(definition)
            if "retention.ms" in wanted:  # with a day more, and here with as much as Java was told
                wanted["retention.ms"] = str(definition.retention_ms + MORE_RETENTION_MS)
            topic = java.java.changelog(name)
            assert other_settings(wanted, admin.topic_settings([topic])[topic]) == {}, name


def test_what_was_aborted_was_in_the_changelog_and_is_never_shown(java: Scene) -> None:
    assert PHANTOM.encode() in java.with_aborted
    bound = end_of(java.changes("count"))
    answer = java.client.store("count", bound=bound, wait_ms=20_000).get(PHANTOM)
    assert not answer.found


def test_the_change_feed_of_a_store_makes_up_its_content(java: Scene) -> None:
    changes = java.changes("table")
    content: dict[str, tuple[str, int | None]] = {}
    with closing(java.client.store("table").changes(since="earliest")) as feed:
        for _, change in zip(changes, feed, strict=False):
            if change.value is None:
                content.pop(change.key, None)
            else:
                content[change.key] = (change.value, change.timestamp)
    rows = [(row.key.decode(), (row.value.decode(), row.timestamp_ms)) for row in java.dumps["table"]]
    assert content == dict(rows)


def kept_of(record: Record, definition: StoreDefinition) -> bytes | None:
    """A record's value as the store has it, without the timestamp."""
    return join_headers(record.value, record.headers) if definition.headers and record.value else record.value


def test_a_store_of_windows_below_the_start_of_its_changelog_keeps_its_rows_and_reads_what_there_is(
    java: Scene, kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    """Of a copy of the changelog: the broker deletes the beginning of it while no worker runs."""
    copy, definition = f"{java.java.application_id}-copy", java.declared["tumbling"]
    changes = [record for record in java.changes("tumbling") if record.partition == 0]
    app = App(f"{java.java.application_id}-below")
    app.external_store(definition, of=java.java.application_id, changelog=copy)
    config = configured(app, tmp_path / "state")
    with closing(java.log.admin()) as admin, closing(java.log.producer()) as producer:
        admin.create_topics([NewTopic(copy, 1, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})])

        def copied(first: int, end: int | None = None) -> None:
            for record in changes[first:end]:
                at_ms, headers = record.timestamp_ms, record.headers
                producer.produce(copy, record.key, record.value, timestamp_ms=at_ms, headers=headers)
            producer.flush()

        def run_to_the_end() -> dict[bytes, bytes]:
            end = admin.log_end(TopicPartition(copy, 0))
            with closing(Stores(app, config, tmp_path / "readers")) as kept, running(app, config, java.log):
                eventually(lambda: kept.offset("tumbling", copy, 0) == end - 1, "the store has caught up")
                return {key[8:]: value for key, value in kept.rows("tumbling", 1).items()}

        copied(0, -20)
        assert len(run_to_the_end()) > 10
        copied(-20)
        client = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
        for deleted in client.delete_records([Place(copy, 0, len(changes) - 10)]).values():
            deleted.result(20)
        read = {record.key: kept_of(record, definition) for record in changes[-10:]}
        found = run_to_the_end()
        assert found.items() >= read.items()
        kept = {key: value for key, value in found.items() if key not in read}
        assert kept, "windows that have not expired"
        assert kept.items() <= {record.key: kept_of(record, definition) for record in changes[:-20]}.items()
