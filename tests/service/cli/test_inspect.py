"""`stateline inspect`: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateline.cli.state.inspect import InspectRequest, inspect
from stateline.cli.state.inspect_entries import notation, plain_text
from stateline.cli.state.inspect_view import moment
from stateline_store import (
    CallerError,
    DoesNotExistError,
    InvalidArgumentError,
    KeyValueStore,
    Position,
    SessionStore,
    StateDirectory,
    StoreContext,
    TaskLock,
    TimestampedKeyValueStore,
    TopicPartition,
    VersionedStore,
    Windowed,
    WindowStore,
)
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")
PAGE = Path(__file__).parents[3] / "docs" / "operations" / "inspect.md"
MINUTE = 60_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a store of every kind in task 0_3, and one of them in 0_4."""
    state = tmp_path_factory.mktemp("filled")
    directory = StateDirectory(state, "app")
    for task_id in ("0_3", "0_4"):
        directory.lock_task(task_id).release()
        totals = KeyValueStore("totals")
        totals.init(StoreContext(task_id, directory.task(task_id)))
        for key, value in ((b"Ada", 5), (b"Bob", 6), (b"Cleo", 7)):
            totals.put(key, struct.pack(">q", value))
        offsets = {TopicPartition("app-totals-changelog", int(task_id[2:])): 2}
        totals.commit(offsets, position=Position({"orders": {3: 9}}))
        totals.close()
    fill_the_others(StoreContext("0_3", directory.task("0_3")))
    return state


@pytest.fixture
def state(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, which may be changed."""
    return shutil.copytree(filled, tmp_path / "state")


def fill_the_others(context: StoreContext) -> None:
    orders = TimestampedKeyValueStore("orders")
    clicks = WindowStore("clicks", retention_ms=10 * MINUTE, window_size_ms=10)
    visits, prices = SessionStore("visits", retention_ms=MINUTE), VersionedStore("prices", history_retention_ms=MINUTE)
    for store in (orders, clicks, visits, prices):
        store.init(context)
    orders.put_with_timestamp(b"Ada", b'{"amount": 12}', 1_795_259_814_382)
    clicks.put(b"Ada", b"1", 50)
    clicks.put(b"Ada", b"2", 6 * MINUTE)
    visits.put(Windowed(b"Ada", 10, 30), b"3")
    prices.put(b"Ada", b"4", 10)
    prices.put(b"Ada", b"5", 20)
    for store in (orders, clicks, visits, prices):
        store.commit({})
        store.close()


def listing(directory: Path, **request: Any) -> dict[str, Any]:
    text, _ = inspect(directory, InspectRequest(**request), as_json=True)
    found: dict[str, Any] = json.loads(text)
    return found


def table(directory: Path, **request: Any) -> list[list[str]]:
    text, _ = inspect(directory, InspectRequest(**request), as_json=False)
    return [re.split(r"  +", line) for line in text.splitlines()]


# The listing


def test_the_listing_has_a_line_for_every_store_with_its_owner(state: Path) -> None:
    lock = TaskLock(state / "app" / "0_3" / ".lock")
    lines = table(state)
    lock.release()
    names = [(line[1], line[3], line[4], line[5], line[-1]) for line in lines[1:]]
    assert names == [
        ("0_3", "clicks", "window", "v1", "ok"),
        ("0_3", "orders", "key_value", "v2", "ok"),
        ("0_3", "prices", "versioned", "v1", "ok"),
        ("0_3", "totals", "key_value", "v1", "ok"),
        ("0_3", "visits", "session", "v1", "ok"),
        ("0_4", "totals", "key_value", "v1", "ok"),
    ]
    assert lines[1][2].startswith("pid ")
    assert lines[-1][2] == "-"
    totals = dict(zip(lines[0], lines[-1], strict=True))
    assert (totals["commit"], totals["offsets"], totals["position"]) == ("1", "app-totals-changelog-4=2", "orders-3=9")
    clicks = dict(zip(lines[0], lines[1], strict=True))
    assert clicks["stream time"] == "1970-01-01T00:06:00.000Z"


def test_the_json_of_a_store_says_it_all(state: Path) -> None:
    (application,) = listing(state, task="0_3", store="totals")["applications"]
    (store,) = application["tasks"][0]["stores"]
    assert store.pop("committed_at_ms") > 0
    assert store.pop("size_bytes") > 0
    assert store == {
        "store": "totals",
        "path": str(state / "app" / "0_3" / "rocksdb" / "totals"),
        "state": "ok",
        "problem": None,
        "kind": "key_value",
        "format": "v1",
        "format_version": 1,
        "segment_interval_ms": None,
        "retain_duplicates": False,
        "commit_number": 1,
        "offsets": {"app-totals-changelog-3": 2},
        "position": {"orders": {"3": 9}},
        "stream_time_ms": None,
        "approximate_entries": 3,
    }


def test_the_members_of_the_json_are_those_of_the_documents(state: Path) -> None:
    (state / "app" / "0_3" / ".wiped-x").mkdir()
    (state / "app" / "0_3" / "topics.json").write_text("?")
    report = listing(state)
    (application,) = report["applications"]
    task = application["tasks"][0]
    parts = {
        "report": report,
        "application": application,
        "task": task,
        "store": task["stores"][0],
        "other file": task["other_files"][0],
        "problem": task["problems"][0],
    }
    section = PAGE.read_text(encoding="utf-8").split("\n## JSON\n")[1]
    for name, part in parts.items():
        (row,) = re.findall(rf"^\| {name} \| (.*) \|$", section, re.MULTILINE)
        assert re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row)) == list(part), name
    whole = listing(state, store="totals", key="Ada")
    said = re.sub(r"\([^)]*\)", "", section.split("the answer is an object of ")[1])
    assert set(re.findall(r"`(\w+)`", said)) == {*whole, *whole["entries"][0]}


def test_files_beside_stores_and_problems_stand_below_the_table(state: Path) -> None:
    task = state / "app" / "0_3"
    (task / ".checkpoint").write_text("0\n1\nmine 3 41\n")
    (task / "totals.position").write_text("0\n1\norders 3 9\n")
    (task / "topics.json").write_text('{"orders": "an id"}')
    (task / ".wiped-x").mkdir()
    (state / "app" / ".relocation.json").write_text("")
    (task / "rocksdb" / "visits" / "CURRENT").write_text("nothing")
    text, code = inspect(state, InspectRequest(), as_json=False)
    assert code == 1
    below = [re.sub(r"[\d,]+ bytes", "N bytes", line) for line in text.split("\n\n", 1)[1].splitlines()]
    assert below[:-1] == [
        "app/0_3/.checkpoint: mine-3=41",
        "app/0_3/totals.position: orders-3=9",
        "app/0_3/topics.json: orders is an id",
        "app/0_3/.wiped-x: trash, N bytes",
        "app/.relocation.json: journal, N bytes",
        "",
    ]
    assert below[-1].startswith(f"damaged: The store in {task / 'rocksdb' / 'visits'} is damaged: CURRENT names")


def test_a_task_without_stores_has_a_line(tmp_path: Path) -> None:
    StateDirectory(tmp_path, "app").lock_task("0_0").release()
    assert table(tmp_path)[1][:4] == ["app", "0_0", "-", "-"]


# Entries


def test_a_key_is_looked_up_in_every_task(state: Path) -> None:
    lines = table(state, store="totals", key="Ada", value_type="int64")
    assert lines == [
        ["application", "task", "store", "key", "value"],
        ["app", "0_3", "totals", "Ada", "5"],
        ["app", "0_4", "totals", "Ada", "5"],
    ]
    assert table(state, store="totals", task="0_4", key="Ada", value_type="int64") == [lines[0], lines[2]]


def test_a_key_that_there_is_not_has_no_entries(state: Path) -> None:
    assert inspect(state, InspectRequest("totals", key="Zoe"), as_json=False) == ("none", 0)
    assert listing(state, store="totals", key="Zoe") == {"entries": [], "more": False, "problems": []}


def test_a_range_has_both_its_ends_and_one_may_be_open(state: Path) -> None:
    def keys(**request: str) -> list[str]:
        return [entry["key"] for entry in listing(state, store="totals", task="0_3", **request)["entries"]]

    assert keys(lower="Ada", upper="Bob") == ["Ada", "Bob"]
    assert keys(lower="B") == ["Bob", "Cleo"]
    assert keys(upper="B") == ["Ada"]


@pytest.mark.parametrize(
    ("option", "request_"),
    [
        ("--limit", InspectRequest(limit=1)),
        ("--key-type", InspectRequest(store="totals", key_type="int64")),
        ("--value-type", InspectRequest(store="totals", value_type="int64")),
    ],
)
def test_an_option_about_entries_is_refused_where_none_are_asked_for(
    state: Path, option: str, request_: InspectRequest
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{option} is about entries: ask for some with --key, or --from"):
        inspect(state, request_, as_json=False)


def test_a_limit_that_cuts_entries_off_says_so(state: Path) -> None:
    found = listing(state, store="totals", lower="", limit=4)
    assert ([entry["task"] for entry in found["entries"]], found["more"]) == (["0_3"] * 3 + ["0_4"], True)
    assert listing(state, store="totals", lower="", limit=6)["more"] is False
    text, _ = inspect(state, InspectRequest("totals", lower="", limit=1), as_json=False)
    assert text.splitlines()[-1] == "There are more than these 1: --limit shows more."


def test_keys_of_every_kind_are_shown_taken_apart(state: Path) -> None:
    def shown(store: str) -> list[list[str]]:
        return [line[3:] for line in table(state, store=store, key="Ada")]

    assert shown("orders") == [["key", "timestamp", "value"], ["Ada", "2026-11-21T11:16:54.382Z", '{"amount": 12}']]
    assert shown("clicks") == [
        ["key", "segment", "start", "sequence", "value"],
        ["Ada", "0", "1970-01-01T00:00:00.050Z", "0", "1"],
        ["Ada", "1", "1970-01-01T00:06:00.000Z", "0", "2"],
    ]
    assert shown("visits") == [
        ["key", "segment", "start", "end", "value"],
        ["Ada", "0", "1970-01-01T00:00:00.010Z", "1970-01-01T00:00:00.030Z", "3"],
    ]
    assert shown("prices") == [
        ["key", "segment", "timestamp", "valid_to", "value"],
        ["Ada", "0", "1970-01-01T00:00:00.010Z", "1970-01-01T00:00:00.020Z", "4"],
        ["Ada", "-1", "1970-01-01T00:00:00.020Z", "-", "5"],
    ]


def test_a_store_that_is_damaged_does_not_hide_the_entries_of_another(state: Path) -> None:
    (state / "app" / "0_3" / "rocksdb" / "totals" / "CURRENT").write_text("nothing")
    text, code = inspect(state, InspectRequest("totals", key="Ada", value_type="int64"), as_json=True)
    found = json.loads(text)
    assert (code, [entry["task"] for entry in found["entries"]]) == (1, ["0_4"])
    assert [problem["state"] for problem in found["problems"]] == ["damaged"]


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"Ada", "Ada"), ("é".encode(), "é"), (b"", "0x"), (b"\n", "0x0a"), (b"\xff", "0xff"), (b"0x41", "0x30783431")],
)
def test_bytes_without_a_type_are_text_or_digits_and_can_be_given_again(data: bytes, text: str) -> None:
    assert plain_text(data) == text
    assert notation("--key-type", None).parsed("--key", text) == data


@pytest.mark.parametrize(
    ("name", "text", "data"),
    [
        ("string", "Ada", b"Ada"),
        ("json", '{"a": 1}', b'{"a": 1}'),
        ("bytes", "_w==", b"\xff"),
        ("int32", "-1", b"\xff" * 4),
        ("int64", "7", struct.pack(">q", 7)),
        ("float64", "1.5", struct.pack(">d", 1.5)),
    ],
)
def test_keys_and_values_are_read_and_shown_by_their_type(name: str, text: str, data: bytes) -> None:
    typed = notation("--key-type", name)
    assert typed.parsed("--key", text) == data
    assert json.loads(json.dumps(typed.to_json(data))) is not None
    assert typed.to_text(data) == ("/w==" if name == "bytes" else text)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b'{ "a":1}'),
        ("json", b"[1,2]"),
        ("float64", struct.pack(">d", float("nan"))),
        ("float64", struct.pack(">d", float("-inf"))),
        ("uuid", b"0198C0DE-0000-7000-8000-0000000000AB"),
        ("bytes", b"\xff\xfe"),
    ],
)
def test_a_key_that_is_shown_can_be_given_again(name: str, data: bytes) -> None:
    typed = notation("--key-type", name)
    shown = typed.key_members(data)
    assert typed.parsed("--key", str(shown.get("key_text", shown["key"]))) == data


def test_times_that_no_calendar_has_are_numbers() -> None:
    assert moment(0) == "1970-01-01T00:00:00.000Z"
    assert moment(2**63 - 1) == str(2**63 - 1)
    assert moment(-1) is None


# Wrong usage


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (InspectRequest("nope"), r"no store 'nope' in .*: it holds clicks, orders, prices, totals, visits\."),
        (InspectRequest("orders", "0_4"), r"no store 'orders' in task 0_4 of .*: it holds totals\."),
        (InspectRequest(task="9_9"), r"no task '9_9' in .*: it holds 0_3, 0_4\."),
        (InspectRequest(key="Ada"), "--store"),
        (InspectRequest("totals", key="Ada", lower="B"), "--key asks for one key"),
        (InspectRequest("totals", lower="B", upper="A"), "--from 'B' is above --to 'A'"),
        (InspectRequest("totals", key="Ada", key_type="int64"), "--key 'Ada' cannot be read: 'Ada' is not an int64"),
        (InspectRequest("totals", upper="0xzz"), "--to '0xzz' cannot be read: hexadecimal digits follow 0x"),
        (InspectRequest("totals", key="Ada", key_type="long"), "--key-type 'long': string, json, bytes, int32"),
        (
            InspectRequest("totals", key="Ada", value_type="int32"),
            "is not an int32: it has 8 bytes. Give another --value-type",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_what_there_is(state: Path, request_: InspectRequest, message: str) -> None:
    with pytest.raises((DoesNotExistError, InvalidArgumentError), match=message):
        inspect(state, request_, as_json=True)


def test_a_directory_that_is_none_of_statelines_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        with pytest.raises(CallerError, match=f"{directory.name}.*ive a state directory"):
            inspect(directory, InspectRequest(), as_json=False)


# As a process


def stateline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "inspect", *arguments], capture_output=True, text=True, timeout=HANGING_S, check=False
    )


def test_the_command_prints_and_ends_with_its_status(state: Path) -> None:
    asked = ("--store", "totals", "--from", "Bob", "--to", "Bob", "--limit", "1", "--value-type", "int64")
    done = stateline(str(state), *asked)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.split(r"  +", done.stdout.splitlines()[1]) == ["app", "0_3", "totals", "Bob", "6"]
    (state / "app" / "0_4" / "rocksdb" / "totals" / "CURRENT").unlink()
    done = stateline(str(state), "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["applications"][0]["tasks"][1]["stores"][0]["state"] == "damaged"


def test_wrong_usage_is_one_line_and_status_2(state: Path) -> None:
    done = stateline(str(state.parent / "nowhere"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: There is no {state.parent / 'nowhere'}: give a state directory")
