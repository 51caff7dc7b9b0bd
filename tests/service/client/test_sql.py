"""Both clients and SQL: rows as Python values, as tables of Arrow, pandas and Polars, terms, and refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import httpx
import polars as pl
import pyarrow as pa
import pytest

from stateline.client import (
    Client,
    NotUpToBoundError,
    Position,
    Retries,
    Session,
    SqlInvalidError,
    SqlNotAllowedError,
    SqlTimeoutError,
    SqlTooLargeError,
    TooManyRequestsError,
    UnexpectedAnswerError,
)
from stateline_store import ConfigurationError, InvalidArgumentError, StatelineError, TopicPartition
from support.http.faulty_proxy import Answered, Cut, FaultyProxy, faulty_proxy
from support.processes.query_server import TIMESTAMP_MS, TOPIC, OwningWorker
from support.processes.served_here import served_here

Connect = Callable[..., Client]
PROBLEM = {"Content-Type": "application/problem+json"}
QUICK = Retries(first_pause_s=0.01, longest_pause_s=0.02)
SEATS = {f"N{number:02}": {"seats": number, "tags": ["a", None], "serial": 2**70 + number} for number in range(20)}


@pytest.fixture(scope="module")
def server(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.URL]:
    worker.put_all(SEATS)
    worker.commit()
    with served_here(state_dir, "server.scan.processes=0", "sql.max.rows=50") as found:
        yield found.client.base_url


@pytest.fixture
def proxy(server: httpx.URL) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.port or 0) as proxy:
        yield proxy


def test_rows_are_dicts_of_pythons_values(client: Client) -> None:
    answer = client.sql("select key, value, timestamp from aircraft where key = 'N07'")
    (row,) = answer.rows
    assert row == {
        "key": "N07",
        "value": SEATS["N07"],
        "timestamp": datetime.fromtimestamp(TIMESTAMP_MS / 1000, UTC),
    }
    assert (len(answer), list(answer), answer.columns) == (1, [row], ("key", "value", "timestamp"))


def test_each_sql_type_is_a_value_of_python(client: Client) -> None:
    answer = client.sql(
        "select sum((value->>'seats')::bigint) as total, 1.50::decimal(9, 2) as price, 'infinity'::timestamptz as late,"
        " map {'a': 170141183460469231731687303715884105727::hugeint} as m, {'n': 5::hugeint, 'b': null} as s,"
        " [1::hugeint, null] as l, '\\xff'::blob as b, null::integer as nothing, map([], []) as no_map,"
        " '5ab5c0b6-7c0c-4c4e-9f5e-000000000000'::uuid as u from aircraft"
    )
    assert answer.rows == [
        {
            "total": sum(range(20)),
            "price": Decimal("1.50"),
            "late": "infinity",
            "m": {"a": 2**127 - 1},
            "s": {"n": 5, "b": None},
            "l": [1, None],
            "b": b"\xff",
            "nothing": None,
            "no_map": {},
            "u": "5ab5c0b6-7c0c-4c4e-9f5e-000000000000",
        }
    ]
    assert type(answer.rows[0]["total"]) is int


def test_columns_of_one_name_are_all_there(client: Client) -> None:
    answer = client.sql("select a.key, b.key, 3 as key_1 from aircraft a join aircraft b using (key) where key = 'N01'")
    assert answer.rows == [{"key": "N01", "key_1": "N01", "key_1_1": 3}]
    assert answer.arrow().schema.names == ["key", "key_1", "key_1_1"]


def test_an_answer_without_rows_has_its_columns(client: Client) -> None:
    answer = client.sql("select key, value from aircraft where key = 'none'")
    assert (answer.rows, answer.columns, len(answer)) == ([], ("key", "value"), 0)


@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        ("$1::int + $2::int", [1, 2], 3),
        ("$seats::int", {"seats": 7}, 7),
        ("$1::hugeint", [2**100], 2**100),
        ("$1::timestamptz", [datetime(2026, 1, 2, tzinfo=UTC)], datetime(2026, 1, 2, tzinfo=UTC)),
        ("$1::uuid::varchar", [UUID(int=5)], str(UUID(int=5))),
        ("len($1)", [("a", "b")], 2),
        ("$1 is null", [None], True),
        ("timestamptz '2026-01-02 00:00Z' - $1::timestamptz", ["2026-01-01T23:58:30.5Z"], timedelta(seconds=89.5)),
        ("[interval '1 day -1 hour']", [], [timedelta(hours=23)]),
        ("interval 14 months", [], pa.MonthDayNano([14, 0, 0])),
    ],
)
def test_values_of_a_statement_are_parameters(client: Client, sql: str, params: object, expected: object) -> None:
    assert client.sql(f"select {sql} as n", params=params).rows == [{"n": expected}]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("text", "give a list"),
        ({1, 2}, "give a list"),
        ([b"x"], "bytes"),
        ([float("nan")], "nan"),
        ([Decimal(1)], "Decimal"),
        ([2**200], "too large"),
    ],
)
def test_values_that_no_statement_can_have_are_refused_with_their_reason(
    client: Client, params: object, said: str
) -> None:
    with pytest.raises(StatelineError, match=said):
        client.sql("select $1", params)  # type: ignore[arg-type]


def test_an_answer_says_what_its_rows_are_of(client: Client, worker: OwningWorker) -> None:
    one = client.sql("select count(*) as n from aircraft", max_age_ms=0)
    assert (one.isolation_level, one.cut, one.age_s) == ("read_committed", False, 0)
    assert one.position.get(TOPIC, 0) == worker.offset(0)
    at = worker.put("later", {"seats": 1})
    seen = client.sql("select key from aircraft where key = 'later'", isolation_level="read_uncommitted", max_age_ms=0)
    worker.commit()
    assert (seen.isolation_level, len(seen)) == ("read_uncommitted", 1)
    reached = Position.of({at: worker.offset(at.partition)})
    assert len(client.sql("select key from aircraft where key = 'later'", bound=reached, wait_ms=5_000)) == 1


def test_terms_are_those_of_the_client_unless_the_statement_has_its_own(server: httpx.URL, connect: Connect) -> None:
    beyond = Position.of({TopicPartition(TOPIC, 0): 10**9})
    client = connect(server, bound=beyond, allow_partial=True)
    with pytest.raises(NotUpToBoundError):
        client.sql("select count(*) as n from aircraft")
    assert client.sql("select count(*) as n from aircraft", bound=Position()).rows
    with pytest.raises(TypeError, match="partitions"):
        client.sql("select 1", partitions=[0])  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="all partitions"):
        connect(server, partitions=[0]).sql("select 1")


def test_rows_are_tables_of_arrow_pandas_and_polars(client: Client) -> None:
    answer = client.sql(
        "select key, (value->>'seats')::int as seats, sum((value->>'serial')::hugeint) as serial,"
        " sum((value->>'seats')::int) as n from aircraft where key < 'N03' group by all order by key"
    )
    assert isinstance(answer.arrow(), pa.Table)
    frame = answer.pandas()
    assert list(frame["seats"]) == [0, 1, 2]
    assert (str(frame["n"].dtype), list(frame["serial"])) == ("int64", [2**70, 2**70 + 1, 2**70 + 2])
    of_polars = answer.polars()
    assert of_polars.columns == ["key", "seats", "serial", "n"]
    assert of_polars.schema["n"] == pl.Int64
    assert of_polars.rows() == [tuple(row.values()) for row in frame.to_dict("records")]
    twice = client.sql("select 1 as n, 2 as n").polars()
    assert twice.to_dicts() == [{"n": 1, "n_1": 2}]


def test_intervals_are_durations_of_polars_unless_they_have_months(client: Client) -> None:
    frame = client.sql("select interval '-3 seconds' as back, null::interval as nothing").polars()
    assert frame.schema == {"back": pl.Duration("us"), "nothing": pl.Duration("us")}
    assert frame.rows() == [(timedelta(seconds=-3), None)]
    for column in ("interval 14 months", "[interval 14 months]"):
        answer = client.sql(f"select {column} as month")
        with pytest.raises(InvalidArgumentError, match=r"'month' has intervals with months.*Cast the column to text"):
            answer.polars()
    assert client.sql("select (interval 14 months)::text as month").polars().rows() == [("1 year 2 months",)]


def test_differences_of_times_are_timedeltas_of_pandas_unless_they_have_months(client: Client) -> None:
    frame = client.sql(
        "select timestamptz '2026-01-03 01:00Z' - timestamptz '2026-01-01 00:00:00.5Z' as age,"
        " now() - timestamp as ago, interval 14 months as month, null::interval as nothing,"
        " interval '-3 seconds' as back from aircraft where key in ('N01', 'N02')"
    ).pandas()
    types = {name: str(kind) for name, kind in frame.dtypes.items() if name != "month"}
    assert types == dict.fromkeys(("age", "ago", "nothing", "back"), "timedelta64[us]")
    assert list(frame["age"]) == [timedelta(days=2, minutes=59, seconds=59.5)] * 2
    assert (list(frame["back"]), frame["nothing"].isna().all()) == ([timedelta(seconds=-3)] * 2, True)
    assert (frame["ago"] > timedelta(days=365)).all()
    assert str(frame["month"].dtype) == "object"


def test_a_package_that_is_not_there_is_named_with_its_installation(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.sql("select 1 as n")
    for package in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigurationError, match=f"pip install {package}"):
            getattr(answer, package)()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("select nothing from aircraft", SqlInvalidError),
        ("drop table aircraft", SqlNotAllowedError),
        ("select * from range(1000)", SqlTooLargeError),
    ],
)
def test_a_refused_statement_raises_the_error_of_its_reason(client: Client, sql: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        client.sql(sql)


def test_a_statement_of_a_session_is_never_before_what_the_session_has_seen(
    server: httpx.URL, connect: Connect, worker: OwningWorker
) -> None:
    session = Session(wait_ms=0)
    session.saw("another store", {"another topic": {0: 100}})
    client = connect(server, session=session)
    at = worker.put("S1", "staged")
    client.store("aircraft").get("S1", isolation_level="read_uncommitted")
    assert client.sql("select 1 as n").rows == [{"n": 1}], "it reads no store that is behind"
    for sql in ("select key from aircraft", "select a.key from aircraft a join aircraft b using (key)"):
        with pytest.raises(NotUpToBoundError):
            client.sql(sql)
    worker.commit()
    assert client.sql("select key from aircraft where key = 'S1'").rows == [{"key": "S1"}]
    assert session.position("aircraft").get(*at) == worker.offset(at.partition)


def test_a_session_learns_from_a_statement(server: httpx.URL, connect: Connect, worker: OwningWorker) -> None:
    session = Session(wait_ms=0)
    client = connect(server, session=session)
    at = worker.put("S2", "staged")
    client.sql("select key from aircraft where key = 'S2'", isolation_level="read_uncommitted", max_age_ms=0)
    assert session.position("aircraft").get(*at) == worker.offset(at.partition)
    with pytest.raises(NotUpToBoundError):
        client.store("aircraft").get("S2")
    worker.commit()
    assert client.store("aircraft").get("S2").value == "staged"


@pytest.mark.parametrize("bounds", [[], {"aircraft": 1}, "text"])
def test_bounds_of_stores_that_are_no_positions_are_refused(server: httpx.URL, bounds: object) -> None:
    answer = httpx.post(f"{server}/v1/sql", json={"sql": "select 1", "store_bounds": bounds})
    assert (answer.status_code, answer.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert "store_bounds" in answer.json()["detail"]


def test_a_statement_that_times_out_is_not_sent_again(proxy: FaultyProxy, connect: Connect) -> None:
    slow = "select count(*) from range(100000000) a, range(100000) b where a.range % 7 = b.range % 11"
    with pytest.raises(SqlTimeoutError):
        connect(proxy.url, retries=QUICK).sql(slow, timeout_ms=300)
    assert len(proxy.requests) == 1


def test_a_statement_that_a_gateway_or_a_busy_server_refuses_is_sent_again(
    proxy: FaultyProxy, connect: Connect
) -> None:
    busy = json.dumps({"reason": "TOO_MANY_REQUESTS", "status": 429, "detail": "Too many."})
    proxy.faults.extend([Answered("504 Timeout"), Cut(10), Cut(700), Answered("429 Too Many Requests", PROBLEM, busy)])
    assert len(connect(proxy.url, retries=QUICK).sql("select key from aircraft where key < 'N05'")) == 5
    assert len(proxy.requests) == 5
    proxy.faults.append(Answered("429 Too Many Requests", PROBLEM | {"Retry-After": "60"}, busy))
    with pytest.raises(TooManyRequestsError):
        connect(proxy.url, retries=QUICK).sql("select 1")


@pytest.mark.parametrize(
    "answer",
    [
        Answered("200 OK", {"Content-Type": "application/json"}, "[]"),
        Answered("200 OK", {"Content-Type": "application/vnd.apache.arrow.stream"}, "not arrow"),
    ],
)
def test_an_answer_that_is_no_rows_is_not_taken_for_any(proxy: FaultyProxy, connect: Connect, answer: Answered) -> None:
    proxy.faults.append(answer)
    with pytest.raises(UnexpectedAnswerError):
        connect(proxy.url).sql("select 1")
