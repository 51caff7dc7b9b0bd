"""Records in and out of a test driver: what is processed and by which rules, and what its mistakes say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from service.testing import orders
from stateline import App, serdes
from stateline.testing import DeadLetter, Record, TestDriver
from stateline_store import (
    CallerError,
    ConfigurationError,
    DoesNotExistError,
    InvalidArgumentError,
    RecordError,
    StoreClosedError,
    TopologyError,
)


def test_what_is_piped_is_processed_and_committed_when_the_call_returns() -> None:
    with TestDriver(orders.made()) as driver:
        driver.pipe("orders", "alice", {"amount": 30}, timestamp_ms=5)
        driver.pipe("orders", "alice", {"amount": 12}, timestamp_ms=6)
        assert driver.store("totals").get("alice", isolation_level="read_committed") == 42
        assert driver.store("totals").get("bob") is None


def test_records_are_followed_through_the_topics_of_the_application_until_nothing_is_left() -> None:
    with TestDriver(orders.made()) as driver:
        for city in ("Bath", "York", "Bath"):
            driver.pipe("orders", "alice", {"amount": 1, "city": city})
        assert [(e.key, e.value) for e in driver.store("cities").all()] == [("Bath", 2), ("York", 1)]


def test_what_was_written_is_read_once_as_python_objects() -> None:
    with TestDriver(orders.made()) as driver:
        driver.pipe("orders", "alice", {"amount": 101}, timestamp_ms=7)
        driver.pipe("orders", "alice", {"amount": 1}, timestamp_ms=8)
        assert driver.read("large") == [Record("alice", {"amount": 101}, timestamp_ms=7)]
        assert driver.read("large") == []
        driver.pipe("orders", "bob", {"amount": 102}, timestamp_ms=9)
        assert driver.read("large") == [Record("bob", {"amount": 102}, timestamp_ms=9)]
        assert [record.key for record in driver.read("shop-by-city-repartition")] == ["?"] * 3


def test_headers_are_handed_on_and_a_record_without_a_value_deletes_its_key() -> None:
    app = App("headers")

    @app.process("in", key=serdes.string, value=serdes.string, forwards=[app.topic("out", key=serdes.string)])
    def hand_on(record, out) -> None:  # type: ignore[no-untyped-def]  # as users write it
        out.forward(record.key, None, headers=record.headers)

    app.table("names", key=serdes.string, value=serdes.string)
    with TestDriver(app) as driver:
        driver.pipe("in", "a", "x", timestamp_ms=3, headers=[("trace", b"1")])
        assert driver.read("out") == [Record("a", None, timestamp_ms=3, headers=[("trace", b"1")])]
        driver.pipe("names", "a", "Ada", timestamp_ms=3)
        entry = driver.store("names").entry("a")
        assert entry is not None
        assert (entry.value, entry.timestamp) == ("Ada", 3)
        driver.pipe("names", "a", None)
        assert driver.store("names").get("a") is None


def test_keys_are_partitioned_as_kafkas_producers_do_and_a_partition_can_be_named() -> None:
    from confluent_kafka import murmur2

    app = orders.made()
    with TestDriver(app, partitions={"orders": 4}) as driver:
        names = [f"customer-{n}" for n in range(20)]
        driver.pipe_all("orders", [Record(name, {"amount": n + 100}) for n, name in enumerate(names)])
        driver.pipe("orders", "placed", {"amount": 3}, partition=2)
        totals = driver.store("totals")
        for n, name in enumerate(names):
            store = totals.of_partition(murmur2(name.encode(), 4))
            assert store.get(name.encode()) == serdes.int64.serialize(n + 100)  # type: ignore[attr-defined]
        assert totals.of_partition(2).get(b"placed") is not None  # type: ignore[attr-defined]
        assert [entry.key for entry in totals.all()] == sorted([*names, "placed"])
        assert totals.get("placed") == 3
        with pytest.raises(InvalidArgumentError, match=r"'orders' has no partition 4: 0 to 3 are there\."):
            driver.pipe("orders", "a", {"amount": 1}, partition=4)
        with pytest.raises(DoesNotExistError, match="no partition 4: 0, 1, 2, 3 are there"):
            totals.of_partition(4)


def test_without_a_timestamp_a_record_has_the_time_of_the_drivers_own_wall_clock() -> None:
    with TestDriver(orders.made(), wall_clock_ms=1_000) as driver:
        driver.pipe("orders", "alice", {"amount": 101})
        driver.advance_wall_clock(500)
        driver.pipe("orders", "alice", {"amount": 101})
        assert [record.timestamp_ms for record in driver.read("large")] == [1_000, 1_500]
        assert driver.wall_clock_ms == 1_500
        with pytest.raises(InvalidArgumentError, match="forward alone"):
            driver.advance_wall_clock(-1)


def test_timestamps_too_far_ahead_of_that_clock_are_refused() -> None:
    app = orders.made(max__timestamp__ahead__ms=100, deserialization__exception__handler="skip")
    with TestDriver(app, wall_clock_ms=1_000) as driver:
        driver.pipe("prices", "a", 1.0, timestamp_ms=1_101)
        assert driver.store("prices").get("a") is None
        driver.advance_wall_clock(1)
        driver.pipe("prices", "a", 2.0, timestamp_ms=1_101)
        assert driver.store("prices").get("a") == 2.0


def test_mistakes_say_what_there_is() -> None:
    with TestDriver(orders.made()) as driver:
        with pytest.raises(
            DoesNotExistError, match=r"reads 'large'; it reads orders, prices, shop-by-city-repartition"
        ):
            driver.pipe("large", "a", {})
        with pytest.raises(DoesNotExistError, match=r"no topic 'larg'; it has large, orders, prices, "):
            driver.read("larg")
        with pytest.raises(DoesNotExistError, match=r"no store 'total'; it has cities, prices, totals\."):
            driver.store("total")
        with pytest.raises(InvalidArgumentError, match=r"'orders' has keys of type string .*: 7 is not a string"):
            driver.pipe("orders", 7, {"amount": 1})
        with pytest.raises(InvalidArgumentError, match=r"'prices' has .* values of type float64: 'dear' "):
            driver.pipe("prices", "a", "dear")
        with pytest.raises(InvalidArgumentError, match="Keys here are of type string: 7 is not a string"):
            driver.store("totals").get(7)
        with pytest.raises(ConfigurationError, match=r"no dead letters without errors.dead.letter"):
            driver.dead_letters()
        assert driver.store("totals").all() == []
    with pytest.raises(InvalidArgumentError, match=r"count for 'larges'.*orders"):
        TestDriver(orders.made(), partitions={"larges": 2})
    with pytest.raises(InvalidArgumentError, match=r"state\.dir is the test driver's own"):
        TestDriver(orders.made(), config={"state.dir": "here"})
    with pytest.raises(ConfigurationError, match=r"Unknown setting .*\(from TestDriver\(config=…\)\)"):
        TestDriver(orders.made(), config={"processing.guarante": "exactly_once_v2"})


WRONG: dict[str, tuple[Callable[[TestDriver], object], str]] = {
    "timestamp": (
        lambda d: d.pipe("prices", "a", 1.0, timestamp_ms=wrong("x")),
        r"'x' is no timestamp: give whole mill",
    ),
    "true as a timestamp": (lambda d: d.pipe("prices", "a", 1.0, timestamp_ms=True), "True is no timestamp"),
    "half a timestamp": (lambda d: d.pipe("prices", "a", 1.0, timestamp_ms=wrong(1.5)), "1.5 is no timestamp"),
    "of bytes": (lambda d: d.pipe_bytes("prices", b"a", b"b", timestamp_ms=wrong("x")), "'x' is no timestamp"),
    "headers": (lambda d: d.pipe("prices", "a", 1.0, headers=wrong(3)), "3 are no headers"),
    "partition": (lambda d: d.pipe("prices", "a", 1.0, partition=wrong("x")), r"no partition 'x': 0 to 0 are there\."),
    "topic": (lambda d: d.pipe(wrong(3), "a", 1.0), "pipe was given 3, which is no topic"),
    "topic to read": (lambda d: d.read(wrong(None)), "read was given None, which is no topic"),
    "records": (lambda d: d.pipe_all("prices", wrong([("a", 1.0)])), r"\('a', 1\.0\) is no Record: give Record\("),
    "a record alone": (lambda d: d.pipe_all("prices", wrong(Record("a", 1.0))), "give a list of Record"),
    "text": (lambda d: d.advance_wall_clock(wrong("1h")), "'1h' is no time to move the wall clock by: give whole mill"),
    "half a millisecond": (lambda d: d.advance_wall_clock(wrong(1.5)), "1.5 is no time to move the wall clock by"),
}
WRONG_DRIVERS: dict[str, tuple[Callable[[], object], str]] = {
    "app": (lambda: TestDriver(wrong("library:app")), "'library:app' is no App: give the App itself"),
    "clock": (lambda: TestDriver(orders.made(), wall_clock_ms=wrong("x")), "'x' is no timestamp"),
    "settings": (lambda: TestDriver(orders.made(), config=wrong([1])), r"config=\[1\]: give a dict"),
    "partitions": (
        lambda: TestDriver(orders.made(), partitions=wrong("x")),
        "partitions='x': give a number, or a dict",
    ),
    "of a topic": (lambda: TestDriver(orders.made(), partitions=wrong({"orders": "x"})), "partitions={'orders': 'x'}"),
}


def wrong(given: Any) -> Any:
    """What a type checker would refuse."""
    return given


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_named_and_the_driver_goes_on(what: str) -> None:
    call, said = WRONG[what]
    with TestDriver(orders.made()) as driver:
        with pytest.raises(CallerError, match=said):
            call(driver)
        driver.pipe("prices", "a", 1.0)
        assert driver.store("prices").get("a") == 1.0


@pytest.mark.parametrize("what", WRONG_DRIVERS)
def test_a_driver_that_cannot_be_made_says_of_what(what: str) -> None:
    make, said = WRONG_DRIVERS[what]
    with pytest.raises(CallerError, match=said):
        make()


def test_the_client_gets_answers_to_sql() -> None:
    with TestDriver(orders.made(), config={"sql.timeout.ms": 60_000}) as driver:
        driver.pipe("orders", "alice", {"amount": 30})
        answer = driver.client.post("/v1/sql", json={"sql": "select key, value from totals"})
        assert answer.json() == [{"key": "alice", "value": 30}]


def test_the_client_reads_compressed_answers_as_any_other() -> None:
    with TestDriver(orders.made()) as driver:
        driver.pipe("orders", "alice", {"amount": 30})
        answer = driver.client.get("/metrics")
        assert answer.headers["content-encoding"] == "gzip"
        assert "stateline_http_requests_total" in answer.text
        plain = driver.client.get("/metrics", headers={"Accept-Encoding": "identity"})
        assert "stateline_http_requests_total" in plain.text


def test_topics_that_only_a_pipeline_reads_are_not_the_drivers() -> None:
    app = App("piped")
    app.pipeline(reads=app.topic("rows", **orders.TYPES), writes="sums", key="k", name="sum_up", whole_epochs=True)(
        print
    )
    app.table("sums", **orders.TYPES)
    refused = r"'rows' is read by the pipeline 'sum_up' alone.*run_pipeline"
    with TestDriver(app) as driver, pytest.raises(DoesNotExistError, match=refused):
        driver.pipe("rows", "a", {})


def test_an_application_that_cannot_run_is_refused_and_nothing_is_left() -> None:
    app = App("broken")
    app.topic("one", **orders.TYPES)

    @app.process("one", stores=[app.table("two", **orders.TYPES)])
    def together(record, two) -> None:  # type: ignore[no-untyped-def]  # as users write it
        ...

    with pytest.raises(TopologyError, match="partitions"):
        TestDriver(app, partitions={"one": 2, "two": 3})


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_what_ends_a_worker_is_raised_and_the_state_is_that_of_the_last_commit(guarantee: str) -> None:
    with TestDriver(orders.made(processing__guarantee=guarantee)) as driver:
        driver.pipe("orders", "alice", {"amount": 1})
        with pytest.raises(RecordError, match="Nobody is paid here"):
            driver.pipe("orders", "alice", {"amount": -1})
        assert driver.store("totals").get("alice", isolation_level="read_uncommitted") == 1
        with pytest.raises(RecordError, match="Nobody is paid here"):  # as every worker that starts reads it again
            driver.pipe("orders", "bob", {"amount": 1})
        assert driver.store("totals").get("bob") is None


def test_a_driver_that_is_closed_says_so() -> None:
    driver = TestDriver(orders.made())
    driver.close()
    driver.close()
    with pytest.raises(StoreClosedError, match="closed"):
        driver.pipe("orders", "a", {"amount": 1})


@pytest.mark.parametrize("guarantee", orders.GUARANTEES)
def test_records_that_fail_are_dead_letters_with_their_bytes_and_the_reason(guarantee: str) -> None:
    app = orders.made(
        processing__guarantee=guarantee,
        processing__exception__handler="dead-letter",
        deserialization__exception__handler="dead-letter",
        errors__dead__letter__queue__topic__name="bad",
    )
    with TestDriver(app) as driver:
        driver.pipe("orders", "alice", {"amount": 5}, timestamp_ms=1)
        driver.pipe("orders", "alice", {"amount": -5}, timestamp_ms=2)
        driver.pipe("prices", None, 1.0, timestamp_ms=3)
        (failed,) = driver.dead_letters()
        assert failed == DeadLetter("orders", 0, 1, b"alice", b'{"amount":-5}', 2, "ValueError", "Nobody is paid here.")
        assert driver.store("totals").get("alice") == 5
        assert driver.store("cities").get("?") == 1
        assert driver.dead_letters() == []
        driver.pipe_bytes("orders", b"bob", b"{", timestamp_ms=4, headers=[("trace", b"1")])
        (unreadable,) = driver.dead_letters()
        assert (unreadable.key, unreadable.value, unreadable.timestamp_ms) == (b"bob", b"{", 4)
        assert unreadable.headers[0] == ("trace", b"1")
        driver.pipe_bytes("orders", b"bob", b'{"amount": 4}')
        assert driver.store("totals").get("bob") == 4


def test_a_test_of_a_pipe_and_a_get_takes_little_time(capsys: pytest.CaptureFixture[str]) -> None:
    app, times = orders.made(), list[float]()
    for _ in range(10):
        began_s = time.perf_counter()
        with TestDriver(app) as driver:
            driver.pipe("orders", "alice", {"amount": 30}, timestamp_ms=0)
            assert driver.store("totals").get("alice") == 30
        times.append((time.perf_counter() - began_s) * 1000)
    with capsys.disabled():  # measured, never judged: machines differ
        sys.stdout.write(f" [a pipe and a get: {sorted(times)[len(times) // 2]:.1f} ms] ")


def test_a_driver_loads_no_pyspark() -> None:
    code = "import sys; from stateline import App; from stateline.testing import TestDriver; "
    code += "TestDriver(App('empty')).close(); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
