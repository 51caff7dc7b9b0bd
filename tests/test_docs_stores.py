"""docs/stores.md and docs/time-to-live.md are true: names exist as they show them, no Java method is left out."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import stateline_store
from stateline import App, stores
from stateline.testing import TestDriver
from stateline_store import (
    Change,
    IsolationLevel,
    Query,
    QueryResult,
    StateStore,
    StoreClosedError,
    StoreContext,
    TopicPartition,
    queries,
    state_store,
)
from test_docs import blocks, document, plain, rows

TEXT = document("docs/stores.md")
METHODS = rows(TEXT, "## Methods")
QUERIES = rows(TEXT, "## Queries")
# Of kafka-streams 4.4.0, as `javap` lists them (Instant as long), and of KIP-258: method/number of parameters.
JAVA = {
    "ReadOnlyKeyValueStore": "get/1 range/2 reverseRange/2 all/0 reverseAll/0 prefixScan/2 approximateNumEntries/0 "
    "readOnly/1",
    "KeyValueStore": "put/2 putIfAbsent/2 putAll/1 delete/1",
    "ReadOnlyKeyValueWithTimestampStore": "getWithTimestamp/1 rangeWithTimestamp/2 allWithTimestamp/0",
    "KeyValueWithTimestampStore": "putWithTimestamp/3 putWithTimestamp/2 putIfAbsentWithTimestamp/3 "
    "putIfAbsentWithTimestamp/2 putAllWithTimestamp/1 deleteWithTimestamp/1",
    "ReadOnlyWindowStore": "fetch/2 fetch/3 backwardFetch/3 fetch/4 backwardFetch/4 all/0 backwardAll/0 fetchAll/2 "
    "backwardFetchAll/2 readOnly/1",
    "WindowStore": "put/3 put/2",
    "ReadOnlyWindowWithTimestampStore": "fetchWithTimestamp/3 fetchWithTimestamp/4 allWithTimestamp/0 "
    "fetchAllWithTimestamp/2",
    "WindowWithTimestampStore": "putWithTimestamp/4 putWithTimestamp/3 putWithTimestamp/3 putWithTimestamp/2",
    "ReadOnlySessionStore": "findSessions/3 backwardFindSessions/3 findSessions/4 backwardFindSessions/4 "
    "fetchSession/3 fetch/1 backwardFetch/1 fetch/2 backwardFetch/2 readOnly/1",
    "SessionStore": "findSessions/2 put/2 remove/1",
    "ReadOnlySessionWithTimestampStore": "fetchWithTimestamp/1 fetchWithTimestamp/2",
    "SessionWithTimestampStore": "findSessionsWithTimestamp/3 findSessionsWithTimestamp/4 putWithTimestamp/3 "
    "putWithTimestamp/2",
    "VersionedKeyValueStore": "put/3 delete/2 get/1 get/2 readOnly/1",
    "StateStore": "name/0 init/2 flush/0 commit/1 committedOffset/1 close/0 persistent/0 managesOffsets/0 isOpen/0 "
    "query/3 approximateNumUncommittedBytes/0 getPosition/0",
}


def given(call: ast.Call) -> list[str | None]:
    """The names of a call's positional arguments; None for either half of an unpacked pair."""
    names: list[str | None] = []
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            names += [None, None]
        else:
            assert isinstance(argument, ast.Name)
            names.append(argument.id)
    return names


def member(function: ast.expr) -> Any:
    if isinstance(function, ast.Name):
        return getattr(stateline_store, function.id)
    assert isinstance(function, ast.Attribute)
    return inspect.getattr_static(member(function.value), function.attr)


def assert_possible(shown: str) -> None:
    """The shown call, or property, is one that can be made."""
    expression = ast.parse(shown, mode="eval").body
    if not isinstance(expression, ast.Call):
        assert isinstance(member(expression), property), shown
        return
    function = member(expression.func)
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if names[:1] == ["self"]:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        names = names[1:]
    positional = given(expression)
    assert [name or names[at] for at, name in enumerate(positional)] == names[: len(positional)], shown
    keywords = [keyword.arg for keyword in expression.keywords]
    signature.bind(*positional, **{str(keyword): None for keyword in keywords})  # raises for what is missing or unknown


@pytest.mark.parametrize("row", METHODS, ids=lambda row: f"{row[0]}.{plain(row[1])}")
def test_a_method_is_called_as_the_table_shows(row: list[str]) -> None:
    if row[2] == "none":
        assert row[3], "a method without a counterpart needs a reason"
    else:
        assert_possible(plain(row[2]))


def test_no_java_method_is_left_out() -> None:
    shown: dict[str, list[str]] = {}
    for interface, method, *_ in METHODS:
        if method.startswith("`"):
            name, _, parameters = plain(method).rstrip(")").partition("(")
            number = len(parameters.split(",")) if parameters else 0
            shown.setdefault(interface, []).append(f"{name}/{number}")
    assert {interface: sorted(methods) for interface, methods in shown.items()} == {
        interface: sorted(methods.split()) for interface, methods in JAVA.items()
    }


@pytest.mark.parametrize("row", QUERIES, ids=lambda row: plain(row[1]))
def test_a_query_is_made_as_the_table_shows(row: list[str]) -> None:
    assert_possible(plain(row[1]))


def test_every_query_is_in_the_table_with_the_stores_that_answer_it() -> None:
    shown: dict[str, set[str]] = {}
    for _, query, answered_by, _ in QUERIES:
        shown.setdefault(plain(query).split("(")[0], set()).add(answered_by)
    able: dict[str, set[str]] = {}
    for query_type, kind in queries._ANSWERS:
        words = kind.replace("key_value", "key-value")
        if kind == "key_value":
            stamped = query_type in queries._TIMESTAMPED
            words = f"timestamped {words}" if stamped else f"{words}, timestamped too"
        able.setdefault(query_type.__name__, set()).add(words)
    every_kind = {"key-value, timestamped too", "window", "session", "versioned"}
    able = {name: {"every kind"} if kinds == every_kind else kinds for name, kinds in able.items()}
    assert shown == able
    assert set(shown) == {
        query_type.__name__ for query_type in Query.__subclasses__() if query_type.__module__ == Query.__module__
    }


def test_every_kind_and_how_it_is_declared_exist() -> None:
    for kind, declared, _ in rows(TEXT, "## Kinds"):
        assert issubclass(getattr(stateline_store, plain(kind)), StateStore)
        assert callable(getattr(stores, plain(declared).removeprefix("stores.")))


def test_the_contract_is_that_of_state_store() -> None:
    contract = inspect.getdoc(state_store)
    assert contract is not None
    table = [line.split("|")[1:-1] for line in contract.splitlines() if line.strip().startswith("|")][2:]
    assert [[cell.strip() for cell in row] for row in table] == rows(TEXT, "## A store of your own")


def test_the_example_of_entries_with_their_own_time_to_live_expires_them() -> None:
    names: dict[str, Any] = {}
    exec(blocks(document("docs/time-to-live.md"), "python")[0], names)
    with TestDriver(names["app"]) as driver:
        for key, lives_s, at_ms in (("short", 1, 0), ("long", 60, 0), ("later", 1, 1_001)):
            driver.pipe("logins", key, {"lives_s": lives_s}, timestamp_ms=at_ms)
        assert {entry.key for entry in driver.store("tokens").all()} == {"long", "later"}


def test_the_example_of_headers_keeps_what_it_shows() -> None:
    names: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[0], names)
    with TestDriver(names["app"]) as driver:
        for amount in (30, 12):
            driver.pipe("orders", "alice", {"amount": amount}, headers=[("trace", b"7f3a")])
        entry = driver.store("newest").entry("alice")
    assert entry is not None
    assert entry.value == {"amount": 12}
    assert f"`{entry.headers}`" in TEXT.replace('"', "'")
    shown = [[name, (value or b"").decode()] for name, value in entry.headers or ()]
    assert f'"headers": {json.dumps(shown)}' in TEXT


def test_the_example_of_a_query_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    example = blocks(TEXT, "python")[1]
    names: dict[str, Any] = {}
    exec(example, names)
    assert capsys.readouterr().out.strip() == example.split("  # ")[1].strip()
    assert isinstance(names["answer"], QueryResult)
    assert names["reader"].isolation_level is IsolationLevel.READ_COMMITTED


def test_the_store_of_ones_own_commits_and_is_restored_from_what_it_staged(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(blocks(TEXT, "python")[2], names)
    make, context = names["VisitorStore"], StoreContext("0_0", tmp_path)
    store, other = make("visitors"), make("visitors")
    with pytest.raises(StoreClosedError):
        store.count("home")
    store.init(context)
    for visitor in ("anna", "bo", "anna"):
        store.add("home", visitor)
    changes = list(store.staged_changes())
    assert changes == [Change(b"home\0anna", b"", None), Change(b"home\0bo", b"", None)]
    store.commit({TopicPartition("changelog", 0): 1})
    assert (store.count("home"), list(store.staged_changes())) == (2, [])
    other.init(context)
    other.restore((key, value, 0) for key, value, _ in changes)
    other.commit({})
    assert (other.count("home"), other.count("away")) == (2, 0)
    other.close()
    assert not other.is_open
    assert (store.persistent, store.manages_offsets, store.transactional) == (False, False, True)


def test_the_application_with_a_store_of_ones_own_declares_it() -> None:
    names: dict[str, Any] = {}
    exec("".join(blocks(TEXT, "python")[2:]), names)
    assert isinstance(names["app"], App)
    assert names["visitors"].name == "visitors"
