"""What `stateline.log.interface` promises of records, topics and transactions, on both logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import murmur2

from stateline.log import NewTopic, Producer
from stateline.log.interface import LogRow
from stateline_store import DoesNotExistError, FencedError, InvalidArgumentError, TopicPartition
from support.log.log_bench import Bench, drain, flat, take, until
from support.processes.running_worker import eventually


def _write_through(producer: Producer, topic: str, value: bytes) -> None:
    """A log may refuse a record at once or when it is flushed."""
    producer.produce(topic, None, value, timestamp_ms=7, partition=0)
    producer.flush()


# --- Records


def test_records_come_back_in_order_with_their_timestamps(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"%d" % i for i in range(2500)))
    place = TopicPartition(topic, 0)
    records = drain(bench.reader(place), place, 2500)
    assert [(r.offset, r.timestamp_ms, r.value) for r in records] == [(i, 1000 + i, b"%d" % i) for i in range(2500)]


@pytest.mark.parametrize("key", [None, b"", b"k\x00\xff"])
@pytest.mark.parametrize("value", [None, b"", b"v\x00\xff"])
def test_absent_and_empty_keys_and_values_stay_apart(bench: Bench, key: bytes | None, value: bytes | None) -> None:
    topic = bench.topic()
    producer = bench.producer()
    producer.produce(topic, key, value, timestamp_ms=7)
    producer.flush()
    place = TopicPartition(topic, 0)
    (record,) = drain(bench.reader(place), place, 1)
    assert (record.key, record.value) == (key, value)


def test_headers_keep_order_duplicates_text_and_absent_values(bench: Bench) -> None:
    topic = bench.topic()
    headers = [("a", b"1"), ("a", None), ("größe ✓", b""), ("", b"\x00\xff")]
    producer = bench.producer()
    producer.produce(topic, b"k", b"v", timestamp_ms=7, headers=headers)
    producer.produce(topic, b"k", b"v", timestamp_ms=7)
    producer.flush()
    place = TopicPartition(topic, 0)
    with_headers, without = drain(bench.reader(place), place, 2)
    assert list(with_headers.headers) == headers
    assert list(without.headers) == []


def test_a_key_decides_the_partition_as_kafkas_own_partitioner_does(bench: Bench) -> None:
    topic = bench.topic(partitions=7)
    producer = bench.producer()
    keys = [b"", *(b"key-%d" % i for i in range(100)), b"\xff" * 33]
    for key in keys:
        producer.produce(topic, key, b"", timestamp_ms=7)
    producer.flush()
    found: dict[bytes | None, int] = {}
    for partition in range(7):
        place = TopicPartition(topic, partition)
        found |= {r.key: partition for r in drain(bench.reader(place), place, bench.end(place))}
    assert found == {key: murmur2(key, 7) for key in keys}


def test_another_key_than_its_own_can_decide_the_partition_of_a_record(bench: Bench) -> None:
    topic = bench.topic(partitions=7)
    producer = bench.producer()
    keys = [b"", *(b"key-%d" % i for i in range(20))]
    for key in keys:
        producer.produce(topic, key + b"-at-noon", b"", timestamp_ms=7, partition_key=key)
    producer.flush()
    found: dict[bytes, int] = {}
    for partition in range(7):
        place = TopicPartition(topic, partition)
        records = drain(bench.reader(place), place, bench.end(place))
        found |= {(r.key or b"").removesuffix(b"-at-noon"): partition for r in records}
    assert found == {key: murmur2(key, 7) for key in keys}


def test_murmur2_is_kafkas() -> None:
    """The vectors of Kafka's UtilsTest.testMurmur2, as the partitioner uses them."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, expected in vectors.items():
        assert murmur2(key, 1_000_003) == (expected & 0x7FFFFFFF) % 1_000_003


def test_flush_tells_the_last_offset_of_each_partition_since_the_last_flush(bench: Bench) -> None:
    topic = bench.topic(partitions=3)
    producer = bench.producer()
    for i in range(5):
        producer.produce(topic, None, b"", timestamp_ms=7, partition=i % 2)
    assert producer.flush() == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1}
    assert producer.flush() == {}
    producer.produce(topic, None, b"", timestamp_ms=7, partition=1)
    assert producer.flush() == {TopicPartition(topic, 1): 2}


def test_a_producer_that_goes_on_without_a_flush_still_gets_its_records_out(bench: Bench) -> None:
    topic = bench.topic()
    producer, place = bench.producer(), TopicPartition(topic, 0)

    def is_visible() -> bool:
        producer.produce(topic, None, b"", timestamp_ms=7, partition=0)
        return bench.admin.watermarks(place)[1] > 0

    until(is_visible)


def test_unknown_topics_and_partitions_are_told(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    producer = bench.producer()
    calls: list[Callable[[], object]] = [
        lambda: producer.produce("missing", None, b"", timestamp_ms=7),
        lambda: producer.produce(topic, None, b"", timestamp_ms=7, partition=2),
        lambda: bench.admin.watermarks(TopicPartition(topic, 2)),
        lambda: bench.admin.watermarks(TopicPartition("missing", 0)),
        lambda: bench.admin.log_end(TopicPartition("missing", 0)),
    ]
    for call in calls:
        with pytest.raises(DoesNotExistError, match=r"missing|2"):
            call()


@pytest.mark.parametrize("timestamp_ms", [1.5, "x", None, 2**63])
def test_a_timestamp_that_is_no_whole_number_is_refused(bench: Bench, timestamp_ms: Any) -> None:
    topic = bench.topic()
    producer = bench.producer()
    with pytest.raises(InvalidArgumentError, match=f"{timestamp_ms!r} is no timestamp"):
        producer.produce(topic, None, b"", timestamp_ms=timestamp_ms)
    assert producer.flush() == {}
    assert bench.values(topic) == []


def test_a_record_that_is_too_large_or_before_1970_is_refused(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.producer()
    with pytest.raises(InvalidArgumentError, match=topic):
        _write_through(producer, topic, b"x" * 2_000_000)
    with pytest.raises(InvalidArgumentError, match="-1"):
        producer.produce(topic, None, b"", timestamp_ms=-1)
    assert bench.values(topic) == []


# --- Topics


def test_many_records_at_once_are_those_written_one_by_one(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    rows: list[LogRow] = [(b"%d" % i, None if i % 3 == 0 else b"v%d" % i, 1000 + i) for i in range(2_500)]
    producer = bench.producer()
    producer.produce_all(topic, 1, [])
    producer.produce_all(topic, 1, rows, (("end", b"1"),), (("each", b"2"),))
    assert producer.flush() == {TopicPartition(topic, 1): 2_499}
    records = drain(bench.reader(place := TopicPartition(topic, 1)), place, 2_500)
    assert [(r.key, r.value, r.timestamp_ms) for r in records] == rows
    each = ("each", b"2")
    assert [list(r.headers) for r in records] == [[each]] * 2_499 + [[("end", b"1"), each]]


def test_of_many_records_at_once_the_one_that_is_refused_is_named(bench: Bench) -> None:
    topic, producer = bench.topic(), bench.producer()
    large = bytes(2_000_000)
    for rows in ([(b"a", b"1", 1), (b"huge", large, 2), (b"b", b"1", 3)], [(b"huge", large, 2)]):
        with pytest.raises(InvalidArgumentError, match=r"Key b'huge': .*larg"):
            producer.produce_all(topic, 0, rows)
    for name, partition in (("nowhere", 0), (topic, 1)):
        with pytest.raises(DoesNotExistError):
            producer.produce_all(name, partition, [(b"a", b"1", 1)])


def test_a_topic_that_exists_is_left_as_it_is(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    before = bench.admin.topics()[topic]
    other = f"other-{bench.id}"
    bench.admin.create_topics([NewTopic(topic, 5), NewTopic(other, 1, {"cleanup.policy": "compact"})])
    topics = bench.admin.topics()
    assert bench.admin.topics([topic, "none"]) == {topic: topics[topic]}
    assert topics[topic] == before
    assert (before.name, before.partitions) == (topic, 2)
    assert topics[other].partitions == 1
    assert not [name for name in topics if name.startswith("__")]


def test_the_leaders_of_created_topics_answer_at_once(bench: Bench) -> None:
    topics = [NewTopic(f"{n}-{bench.id}", 4) for n in range(5)]
    bench.admin.create_topics(topics)
    partitions = [TopicPartition(topic.name, number) for topic in topics for number in range(4)]
    assert bench.admin.bounds(partitions) == dict.fromkeys(partitions, (0, 0))


@pytest.mark.parametrize(
    "new", [NewTopic("a b", 1), NewTopic("..", 1), NewTopic("n", 0), NewTopic("n", 1, {"no": "1"})]
)
def test_a_topic_that_the_log_refuses_is_told(bench: Bench, new: NewTopic) -> None:
    with pytest.raises(InvalidArgumentError):
        bench.admin.create_topics([new])


def test_a_topics_settings_are_those_it_was_made_with_and_the_defaults_of_the_rest(bench: Bench) -> None:
    one = bench.topic(name="one", settings={"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "5"})
    other = bench.topic(name="other")
    found = bench.admin.topic_settings([one, other, "nowhere"])
    assert found.keys() == {one, other}
    for settings in found.values():
        assert settings["message.timestamp.type"] == "CreateTime"
    assert (found[one]["cleanup.policy"], found[one]["min.compaction.lag.ms"]) == ("compact,delete", "5")
    assert (found[other]["cleanup.policy"], found[other]["min.compaction.lag.ms"]) == ("delete", "0")
    assert bench.admin.topic_settings([]) == {}


def test_a_recreated_topic_is_empty_and_has_another_id(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, b"old")
    before = bench.admin.topics()[topic].topic_id
    bench.admin.delete_topics([topic, "missing"])
    assert topic not in bench.admin.topics()
    bench.admin.create_topics([NewTopic(topic, 1)])
    assert bench.admin.topics()[topic].topic_id != before
    assert bench.values(topic) == []


def test_offset_at_is_the_first_record_of_at_least_that_time_else_the_end(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"" for _ in range(10)))
    place = TopicPartition(topic, 0)
    asked = (0, 1000, 1004, 1009, 1010)
    assert [bench.admin.offset_at(place, at) for at in asked] == [0, 0, 4, 9, 10]


def test_records_that_were_deleted_are_gone_and_the_others_keep_their_offsets(bench: Bench) -> None:
    topic, other = bench.topic(partitions=2), bench.topic(name="other")
    for partition in (0, 1):
        bench.write(topic, b"a", b"b", b"c", partition=partition)
    bench.write(other, b"d")
    ends = {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 3}
    for _ in range(2):
        bench.admin.delete_records(ends)
    consumer = bench.reader()
    consumer.assign(dict.fromkeys([*ends, TopicPartition(other, 0)], 0))
    records = flat(take(consumer, 2))
    assert sorted((r.topic, r.partition, r.offset, r.value) for r in records) == sorted(
        [(topic, 0, 2, b"c"), (other, 0, 0, b"d")]
    )
    assert [bench.admin.watermarks(place)[1] for place in ends] == [3, 3]
    bench.write(topic, b"e", partition=1)
    assert [(r.offset, r.value) for r in flat(take(consumer, 1))] == [(3, b"e")]
    bench.admin.delete_records({})


def test_a_partition_begins_where_its_records_were_deleted_up_to_and_not_at_its_next_record(bench: Bench) -> None:
    topic = bench.topic()
    place, producer = TopicPartition(topic, 0), bench.producer(f"{topic}-writer")
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"k", b"v", timestamp_ms=1)
        producer.flush()
        end()
    # Each end of a transaction takes an offset; on Kafka a moment after the commit.
    eventually(lambda: bench.admin.bounds([place]) == {place: (0, 4)}, "both ends are there")
    for offset in (3, 2):
        bench.admin.delete_records({place: offset})
        assert bench.admin.bounds([place]) == {place: (3, 4)}
        assert bench.admin.watermarks(place)[0] == 3


def test_records_of_no_partition_and_beyond_its_end_are_not_deleted(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, b"a")
    with pytest.raises(InvalidArgumentError, match=f"{topic}-0"):
        bench.admin.delete_records({TopicPartition(topic, 0): 2})
    with pytest.raises(DoesNotExistError):
        bench.admin.delete_records({TopicPartition(topic, 1): 0})
    assert bench.values(topic) == [b"a"]


# --- Reading partitions of one's own choice


def test_assign_reads_from_the_offsets_given(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    for partition in (0, 1):
        bench.write(topic, b"a", b"b", b"c", partition=partition)
    consumer = bench.reader()
    consumer.assign({TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 2})
    records = flat(take(consumer, 3))
    assert sorted((r.partition, r.value) for r in records) == [(0, b"b"), (0, b"c"), (1, b"c")]


def test_poll_returns_no_more_than_asked_and_nothing_at_the_end(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"%d" % i for i in range(25)))
    consumer, place = bench.reader(TopicPartition(topic, 0)), TopicPartition(topic, 0)
    batches = take(consumer, 25)
    assert max(map(len, batches)) <= 10
    assert consumer.poll(10, 0.05) == []
    assert consumer.next_offset(place) == 25


def test_what_is_assigned_or_sought_anew_is_nowhere_that_it_was_before(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"%d" % i for i in range(25)))
    place = TopicPartition(topic, 0)
    consumer = bench.reader(place)
    moves: list[Callable[[], object]] = [lambda: consumer.assign({place: 5}), lambda: consumer.seek(place, 5)]
    for move in moves * 20:
        drain(consumer, place, 25)
        move()
        read = [record.offset for record in consumer.poll(10, 0.0)]
        at = consumer.next_offset(place)
        assert at is None or at == 5 + len(read), "it was said to be behind records that it has not given"
        assert read == list(range(5, 5 + len(read)))


def test_an_empty_partition_is_at_its_end_from_the_first_polls(bench: Bench) -> None:
    place = TopicPartition(bench.topic(), 0)
    consumer = bench.reader(place)
    assert consumer.next_offset(place) is None
    until(lambda: consumer.poll(10, 0.05) == [] and consumer.next_offset(place) == 0)


def test_the_lag_is_how_far_the_last_poll_was_from_the_end(bench: Bench) -> None:
    topic = bench.topic(2)
    place, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    bench.write(topic, b"0", b"1", b"2", b"3")
    reader = bench.reader(place, empty)
    assert reader.lag(place) is None
    take(reader, 1, max_records=1)
    assert reader.lag(place) == 3
    until(lambda: not reader.poll(10, 0.05) and reader.lag(place) == 0 and reader.lag(empty) == 0)
    bench.write(topic, b"4", b"5")
    take(reader, 1, max_records=1)
    assert reader.lag(place) == 1
    with pytest.raises(InvalidArgumentError):
        reader.lag(TopicPartition(topic, 7))


def test_the_lag_does_not_count_the_end_of_a_transaction(bench: Bench) -> None:
    place = TopicPartition(bench.topic(), 0)
    producer = bench.producer("t")
    producer.begin_transaction()
    producer.produce(place.topic, None, b"0", timestamp_ms=1, partition=0)
    producer.flush()
    producer.commit_transaction()
    bench.end(place, 2)
    reader = bench.reader(place)
    until(lambda: bool(reader.poll(10, 0.05)) or reader.lag(place) == 0)
    until(lambda: not reader.poll(10, 0.05) and reader.lag(place) == 0)


def test_seek_drops_what_was_buffered(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"%d" % i for i in range(100)))
    place = TopicPartition(topic, 0)
    consumer = bench.reader(place)
    take(consumer, 1, max_records=5)
    consumer.seek(place, 90)
    assert [r.offset for r in drain(consumer, place, 100)] == list(range(90, 100))
    consumer.seek(place, 98)
    again = flat(take(consumer, 2))
    assert [r.offset for r in again] == [98, 99]


def test_a_paused_partition_keeps_its_place(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    for partition in (0, 1):
        bench.write(topic, *(b"%d" % i for i in range(50)), partition=partition)
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = bench.reader(a, b)
    consumer.pause([a])
    records = flat(take(consumer, 50))
    assert {r.partition for r in records} == {1}
    consumer.resume([a])
    records = drain(consumer, a, 50)
    assert [(r.partition, r.offset) for r in records] == [(0, i) for i in range(50)]


def test_an_unassigned_partition_cannot_be_moved(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    consumer, other = bench.reader(TopicPartition(topic, 0)), TopicPartition(topic, 1)
    calls: list[Callable[[], object]] = [
        lambda: consumer.seek(other, 0),
        lambda: consumer.pause([other]),
        lambda: consumer.resume([other]),
        lambda: consumer.next_offset(other),
        lambda: consumer.seek(TopicPartition(topic, 0), -1),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()


def test_the_bounds_of_many_partitions_are_those_of_each(bench: Bench) -> None:
    topic, producer = bench.topic(partitions=3), bench.producer("open")
    producer.begin_transaction()
    for partition in (0, 0, 1):
        producer.produce(topic, None, b"", timestamp_ms=7, partition=partition)
    producer.flush()
    places = [TopicPartition(topic, p) for p in range(3)]
    assert bench.admin.bounds(places) == {each: (0, bench.admin.log_end(each)) for each in places}
    assert [end for _, end in bench.admin.bounds(places).values()] == [2, 1, 0]
    producer.abort_transaction()
    assert bench.admin.bounds([]) == {}
    with pytest.raises(DoesNotExistError, match="missing"):
        bench.admin.bounds([*places, TopicPartition("missing", 0)])


# --- Transactions


def test_only_committed_transactions_are_seen(bench: Bench) -> None:
    topic = bench.topic()
    producer, place = bench.producer("x"), TopicPartition(topic, 0)
    reader = bench.reader(place)
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, None, value, timestamp_ms=7, partition=0)
        assert set(producer.flush()) == {place}
        assert reader.poll(10, 0.05) == []
        end()
        until(lambda: bench.admin.watermarks(place)[1] == bench.admin.log_end(place))
        assert [r.value for r in drain(reader, place, bench.end(place))] == [b"kept"][value == b"dropped" :]
    bench.write(topic, b"after")
    assert bench.values(topic) == [b"kept", b"after"]


def test_an_open_transaction_holds_back_what_follows_it(bench: Bench) -> None:
    topic = bench.topic()
    producer, place = bench.producer("x"), TopicPartition(topic, 0)
    bench.write(topic, b"before")
    producer.begin_transaction()
    producer.produce(topic, None, b"open", timestamp_ms=7, partition=0)
    producer.flush()
    bench.write(topic, b"after")
    assert bench.admin.watermarks(place) == (0, 1)
    assert bench.admin.log_end(place) == 3
    producer.commit_transaction()
    assert bench.values(topic) == [b"before", b"open", b"after"]


def test_next_offset_passes_the_marker_at_the_end_of_a_transaction(bench: Bench) -> None:
    place = TopicPartition(bench.topic(), 0)
    producer = bench.producer("x")
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(place.topic, None, b"", timestamp_ms=7, partition=0)
        last = producer.flush()[place]
        end()
        if end == producer.commit_transaction:
            assert bench.end(place, last + 2) == last + 2
        until(lambda: bench.admin.watermarks(place)[1] == bench.admin.log_end(place))
        consumer = bench.reader(place)
        drain(consumer, place, bench.end(place))  # fails when next_offset never gets there
    assert [r.offset for r in drain(bench.reader(place), place, bench.end(place))][:3] == [0, 1, 2]


def test_records_and_offsets_of_a_transaction_appear_together(bench: Bench) -> None:
    source, sink = bench.topic(name="source"), bench.topic(name="sink")
    bench.write(source, b"a", b"b")
    member, producer = bench.member("g", source), bench.producer("x")
    until(lambda: len(member.records) == 2, member)
    place, group = TopicPartition(source, 0), f"g-{bench.id}"
    for end, expected in ((producer.abort_transaction, {}), (producer.commit_transaction, {place: 2})):
        producer.begin_transaction()
        producer.produce(sink, b"k", b"out", timestamp_ms=7)
        producer.send_offsets_to_transaction({place: 2}, member.consumer)
        end()
        assert bench.admin.committed(group, [place]) == expected
    assert bench.values(sink) == [b"out"]


def test_a_newer_producer_fences_an_older_one_and_settles_its_transaction(bench: Bench) -> None:
    topic = bench.topic()
    old = bench.producer("x")
    old.begin_transaction()
    old.produce(topic, None, b"zombie", timestamp_ms=7, partition=0)
    old.flush()
    new = bench.producer("x")
    with pytest.raises(FencedError):
        _write_through(old, topic, b"zombie")
    with pytest.raises(FencedError):
        old.commit_transaction()
    new.begin_transaction()
    new.produce(topic, None, b"new", timestamp_ms=7, partition=0)
    new.commit_transaction()
    assert bench.values(topic) == [b"new"]


def test_closing_a_producer_aborts_its_transaction(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.producer("x")
    producer.begin_transaction()
    producer.produce(topic, None, b"open", timestamp_ms=7, partition=0)
    producer.flush()
    producer.close()
    bench.write(topic, b"after")
    assert bench.values(topic) == [b"after"]


def test_a_transaction_out_of_turn_is_the_callers_mistake(bench: Bench) -> None:
    topic = bench.topic()
    plain, transactional = bench.producer(), bench.producer("x")
    calls: list[Callable[[], object]] = [
        plain.begin_transaction,
        plain.init_transactions,
        transactional.commit_transaction,
        transactional.abort_transaction,
        lambda: transactional.produce(topic, None, b"", timestamp_ms=7),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
