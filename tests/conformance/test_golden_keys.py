"""Keys, partitions and segments against Kafka Streams' own."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import murmur2

from conformance.golden import section, unhex
from stateline.serde.partitioner import home_partition
from stateline_store import StoreContext
from stateline_store.rows.segments import Segments
from stateline_store.rows.windowed_keys import Windowed, session_key, split_session_key, split_window_key, window_key
from stateline_store.stores.versioned_store import default_segment_interval_ms
from stateline_store.stores.window_store import WindowStore

_SEQUENCE_SIZE = 4


def test_window_keys_are_kafka_streams_bytes_and_are_read_back() -> None:
    for vector in section("window_keys"):
        parts = (unhex(vector["key"]), vector["start"], vector["sequence"])
        assert window_key(*parts) == unhex(vector["bytes"])
        assert split_window_key(unhex(vector["bytes"])) == parts


def test_a_window_ends_where_kafka_streams_says_the_largest_timestamp_at_most(tmp_path: Path) -> None:
    for vector in section("window_ends"):
        store = WindowStore("s", retention_ms=vector["size"], window_size_ms=vector["size"], persistent=False)
        store.init(StoreContext("0_0", tmp_path))
        store.put(b"k", b"v", vector["start"])
        ((window, _),) = store.all()
        assert window == Windowed(b"k", vector["start"], vector["end"])
        store.close()


def test_session_keys_are_kafka_streams_bytes_and_are_read_back() -> None:
    for vector in section("session_keys"):
        session = Windowed(unhex(vector["key"]), vector["start"], vector["end"])
        assert session_key(*session) == unhex(vector["bytes"])
        assert split_session_key(unhex(vector["bytes"])) == session


def test_a_windowed_key_in_a_topic_is_the_stores_without_the_sequence_a_sessions_is_the_stores() -> None:
    for vector in section("topic_keys"):
        key, start, end = unhex(vector["key"]), vector["start"], vector["end"]
        if vector["kind"] == "session":
            assert session_key(key, start, end) == unhex(vector["bytes"])
        else:
            assert window_key(key, start)[:-_SEQUENCE_SIZE] == unhex(vector["bytes"])


def test_a_key_goes_to_the_partition_where_kafka_puts_it() -> None:
    for vector in section("partitions"):
        assert home_partition(unhex(vector["key"]), vector["partitions"]) == vector["partition"]


def test_the_hash_itself_is_kafkas_murmur2() -> None:
    most = 2**31 - 1  # the client masks to 31 bits and takes the rest: of so many partitions it is the hash but once
    for vector in section("partitions"):
        assert murmur2(unhex(vector["key"]), most) == (vector["murmur2"] & most) % most


def test_a_windowed_key_goes_where_its_inner_key_goes() -> None:
    for vector in section("windowed_partitions"):
        assert home_partition(unhex(vector["key"]), vector["partitions"]) == vector["partition"]


def test_segments_are_as_long_as_kafka_streams_makes_them() -> None:
    for vector in section("segment_intervals"):
        interval = Segments.of_retention(vector["retention"]).interval_ms
        assert interval == vector["window"] == vector["session"], vector
        assert default_segment_interval_ms(vector["retention"]) == vector["versioned"], vector


def test_a_timestamp_is_in_the_segment_that_kafka_streams_puts_it_in() -> None:
    for vector in section("segment_ids"):
        assert Segments(0, vector["interval"]).id_of(vector["timestamp"]) == vector["segment"]
