"""Rows of snapshots as Arrow: of every kind of store, with every filter, what the library's own reads say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.server.snapshot_scene import KEYS, KINDS, MINUTE, RETENTION, Entry, Scene, as_set
from stateline import serdes
from stateline.model.store_definition import StoreDefinition
from stateline.rows import snapshot_rows
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_body
from stateline.server.snapshots.filter import read_selected_keys, read_selection
from stateline_store import (
    DamagedDataError,
    InvalidArgumentError,
    UnknownQueryTypeError,
)


@pytest.fixture(scope="module", params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(request.param, tmp_path_factory.mktemp(request.param))
    yield scene
    scene.checkpoint.close()


def test_all_rows_are_what_the_store_itself_shows(scene: Scene) -> None:
    assert as_set(scene.read()) == as_set(scene.expected)
    if scene.definition.kind != "versioned":
        assert scene.read() == scene.expected  # in the same order


@pytest.mark.parametrize(
    ("query", "inside"),
    [
        ("lower=ab", lambda key: key.encode() >= b"ab"),
        ("upper=b", lambda key: key.encode() <= b"b"),
        ("lower=aa&upper=b", lambda key: b"aa" <= key.encode() <= b"b"),
        ("lower=a&upper=a", lambda key: key == "a"),
        ("prefix=a", lambda key: key.startswith("a")),
        ("prefix=b%7f", lambda key: key.startswith("b\x7f")),
        ("prefix=", lambda key: True),
        ("lower=z%C3%BCrich", lambda key: key == "zürich"),
        ("lower=b&upper=a", lambda key: False),
    ],
)
def test_keys_are_bounded_as_in_a_range(scene: Scene, query: str, inside: Callable[[str], bool]) -> None:
    assert as_set(scene.read(query)) == as_set([entry for entry in scene.expected if inside(entry["key"])])


@pytest.mark.parametrize("first", [None, 0, 5 * MINUTE, 33 * MINUTE, 36 * MINUTE + 1, 39 * MINUTE])
@pytest.mark.parametrize("last", [None, 20 * MINUTE, 34 * MINUTE, 36 * MINUTE, 37 * MINUTE + 5])
def test_times_are_bounded_as_each_kind_means_them(scene: Scene, first: int | None, last: int | None) -> None:
    query = "&".join(f"{name}={time}" for name, time in (("from", first), ("to", last)) if time is not None)
    if scene.definition.kind == "key_value" and query:
        with pytest.raises(UnknownQueryTypeError, match="no timestamps"):
            scene.read(query)
        return
    low, high = -1 if first is None else first, 2**63 if last is None else last

    def inside(entry: Entry) -> bool:
        if "valid_to" in entry:
            still = entry["valid_to"] is None or entry["valid_to"] > low
            return entry["timestamp"] <= high and still and low <= high
        if "end" in entry and scene.definition.kind.endswith("session"):
            return bool(entry["end"] >= low and entry["start"] <= high)  # it can span both, in either order
        time = entry.get("start", entry.get("timestamp"))
        return time is not None and low <= time <= high if query else True

    assert as_set(scene.read(query)) == as_set([entry for entry in scene.expected if inside(entry)])


@pytest.mark.parametrize("scene", ["versioned"], indirect=True)
@pytest.mark.parametrize("as_of", [0, 20 * MINUTE, 31 * MINUTE, 35 * MINUTE, 38 * MINUTE + 7, 60 * MINUTE])
def test_as_of_gives_the_one_version_that_was_valid(scene: Scene, as_of: int) -> None:
    valid = [
        entry
        for entry in scene.expected
        if entry["timestamp"] <= as_of and (entry["valid_to"] is None or entry["valid_to"] > as_of)
    ]
    floor = max(entry["timestamp"] for entry in scene.expected) - RETENTION
    found = scene.read(f"as_of={as_of}")
    assert as_set(found) == as_set([entry for entry in valid if entry["valid_to"] is None or as_of >= floor])
    assert len({entry["key"] for entry in found}) == len(found)


@pytest.mark.parametrize("scene", ["versioned"], indirect=True)
def test_a_version_is_not_valid_any_more_at_its_end(scene: Scene) -> None:
    ends = sorted({entry["valid_to"] for entry in scene.expected if entry["valid_to"] is not None})
    assert len(ends) > 3
    for end in ends[-4:]:
        valid = [e for e in scene.expected if e["timestamp"] <= end and (e["valid_to"] is None or e["valid_to"] > end)]
        assert as_set(scene.read(f"as_of={end}")) == as_set(scene.read(f"from={end}&to={end}")) == as_set(valid)


def test_columns_come_alone_and_in_the_order_named(scene: Scene) -> None:
    found = scene.read("columns=value,key")
    assert [list(entry) for entry in found] == [["value", "key"]] * len(found)
    assert len(found) == len(scene.expected)


@pytest.mark.parametrize(
    "query", ["columns=keys", "columns=", "columns=key,key", "prefix=a&lower=b", "limit=3", "from=x"]
)
def test_what_cannot_be_meant_is_refused(scene: Scene, query: str) -> None:
    with pytest.raises(InvalidArgumentError):
        scene.read(query)


def test_after_goes_on_behind_a_key_where_rows_come_by_key(scene: Scene) -> None:
    if not scene.definition.key_value:
        with pytest.raises(InvalidArgumentError, match="after is of key-value stores"):
            scene.read("after=a")
        return
    assert scene.read("after=aa&upper=b") == [e for e in scene.expected if b"aa" < e["key"].encode() <= b"b"]
    assert scene.read("after=zzz&prefix=a") == []


@pytest.mark.parametrize("query", ["", "prefix=a", "from=33&lower=a", "as_of=2100000", "columns=key"])
def test_skip_goes_on_where_a_stream_broke_off(scene: Scene, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ("as_of" in query and scene.definition.kind != "versioned") or (
        "from" in query and scene.definition.kind == "key_value"
    ):
        pytest.skip("refused: the tests before and behind this one")
    monkeypatch.setattr(snapshot_rows, "BATCH_ROWS", 16)
    monkeypatch.setattr(snapshot_rows, "BATCH_BYTES", 200)
    whole = scene.read(query)
    for skip in (0, 1, len(whole) // 2, len(whole) - 1, len(whole), 10**18):
        assert scene.read(f"{query}&skip={skip}".lstrip("&")) == whole[skip:]


@pytest.mark.parametrize("bounds", [{}, {"lower": "a", "upper": "b"}, {"prefix": "b"}, {"lower": "zz"}])
@pytest.mark.parametrize("names", [["a"], ["ab", "a", "nobody", "ab"], ["", "b\x7f", "zürich"], KEYS, ["nobody"]])
def test_of_many_keys_come_the_rows_that_all_rows_have_of_them(
    scene: Scene, names: list[str], bounds: dict[str, str]
) -> None:
    body = {"keys": names, **bounds}
    arguments = Arguments(from_body(json.dumps(body).encode()))
    wanted = read_selected_keys(arguments, scene.definition, 100)
    found: list[Entry] = []
    for batch in snapshot_rows.batches(scene.checkpoint, scene.definition, wanted):
        found += batch.to_pylist()
    all_rows = scene.read("&".join(f"{name}={value}" for name, value in bounds.items()))
    assert found == [entry for entry in all_rows if entry["key"] in names], "once each, in the same order"


@pytest.mark.parametrize("keys", [[], [1], "a", ["a"] * 101])
def test_keys_that_cannot_be_meant_are_refused(scene: Scene, keys: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="keys"):
        read_selected_keys(Arguments(from_body(json.dumps({"keys": keys}).encode())), scene.definition, 100)


def test_a_column_alone_has_what_it_has_beside_the_others(scene: Scene) -> None:
    for name in scene.expected[0]:
        assert [e[name] for e in scene.read(f"columns={name}")] == [e[name] for e in scene.read()]
        if scene.definition.kind != "key_value":
            narrowed = scene.read(f"columns={name}&from={34 * MINUTE}")
            assert [e[name] for e in narrowed] == [e[name] for e in scene.read(f"from={34 * MINUTE}")]


def test_as_of_is_refused_where_nothing_has_versions(scene: Scene) -> None:
    if scene.definition.kind == "versioned":
        with pytest.raises(InvalidArgumentError, match="as_of stands alone"):
            scene.read("as_of=1&from=1")
    else:
        with pytest.raises(UnknownQueryTypeError, match="as_of"):
            scene.read("as_of=1")


def test_batches_are_bounded_in_rows_and_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scene.read()
    monkeypatch.setattr(snapshot_rows, "BATCH_ROWS", 16)
    monkeypatch.setattr(snapshot_rows, "BATCH_BYTES", 40)
    wanted = read_selection(Arguments({}), scene.definition)
    batches = [b for b in snapshot_rows.batches(scene.checkpoint, scene.definition, wanted) if b.num_rows]
    assert len(batches) >= 3
    if scene.definition.kind != "versioned":  # what was has many versions in a row
        assert max(batch.num_rows for batch in batches) <= 10
    assert [entry for batch in batches for entry in batch.to_pylist()] == whole


@pytest.mark.parametrize("scene", ["key_value"], indirect=True)
def test_the_schema_says_which_commit_it_is(scene: Scene) -> None:
    wanted = read_selection(Arguments({}), scene.definition)
    metadata = snapshot_rows.batch_schema(scene.checkpoint, scene.definition, wanted).metadata
    assert metadata[b"stateline.commit"] == b"6"
    assert metadata[b"stateline.position"] == b"{}"
    assert metadata[b"stateline.store"] == b"flights"


@pytest.mark.parametrize("scene", ["timestamped_key_value"], indirect=True)
def test_rows_of_another_type_are_damage_and_not_half_a_batch(scene: Scene) -> None:
    other = StoreDefinition("flights", "timestamped_key_value", serdes.int64, serdes.json)
    with pytest.raises(DamagedDataError, match="key"):
        list(snapshot_rows.batches(scene.checkpoint, other, read_selection(Arguments({}), other)))
