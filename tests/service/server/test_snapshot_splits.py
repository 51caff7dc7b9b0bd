"""Splits of a partition: each row in one of them, whatever kind of store, wherever it is cut, whatever is asked for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest

from service.server.snapshot_scene import KINDS, MINUTE, Entry, Scene
from stateline.rows import snapshot_rows
from stateline.rows.ranges import wanted_splits
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.written_arguments import from_query_string
from stateline.server.snapshots.filter import read_selection, read_split, split_text
from stateline_store import InvalidArgumentError, UnknownQueryTypeError
from stateline_store.reads.splits import Split
from stateline_store.scan import EVERY_KEY, KeyRange
from support.processes.query_server import OwningWorker
from support.run.length import long_or_short

QUERIES = [
    "",
    "lower=a&upper=b",
    f"from={33 * MINUTE}",
    f"to={36 * MINUTE}&lower=ab",
    f"as_of={35 * MINUTE}",
    "after=aa",
]
ALIKE = ["columns=value", "prefix=a", "lower=b&upper=a", f"as_of={20 * MINUTE}"]


@pytest.fixture(scope="module", params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(request.param, tmp_path_factory.mktemp(request.param))
    yield scene
    scene.checkpoint.close()


def _random_splits(scene: Scene, dice: random.Random) -> list[Split]:
    """Cut at stored keys, within them, and where there are none."""
    stored = [key for key, _ in scene.checkpoint.scan(EVERY_KEY)]
    some = [key[: dice.choice([4, 7, 8, 9, 12, 99])] for key in dice.sample(stored, min(len(stored), 12))]
    cuts = sorted({*some, *(dice.randbytes(dice.randrange(1, 10)) for _ in range(3))} - {b""})
    ends = [*cuts, None]
    return [Split(KeyRange(start, end), 1) for start, end in zip([b"", *cuts], ends, strict=True)]


@pytest.mark.parametrize("query", long_or_short([*QUERIES, *ALIKE], QUERIES))
def test_splits_together_have_each_row_once_and_in_the_order_of_all(
    scene: Scene, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        whole = scene.read(query)
    except (UnknownQueryTypeError, InvalidArgumentError):
        return  # not of this kind of store: the tests of rows
    monkeypatch.setattr(snapshot_rows, "BATCH_ROWS", 16)
    dice = random.Random(7)
    wanted = read_selection(Arguments(from_query_string(query.encode())), scene.definition)
    for _ in range(8):
        every = _random_splits(scene, dice)
        monkeypatch.setattr(type(scene.checkpoint), "splits", lambda *_, every=every: every)
        some = [split_text(each.keys) for each in wanted_splits(scene.checkpoint, scene.definition, wanted, 1)]
        assert some or not whole
        found: list[Entry] = []
        for split in some:
            rows = scene.read(f"{query}&split={quote(split)}".lstrip("&"))
            skip = dice.randrange(len(rows) + 1)
            assert scene.read(f"{query}&split={split}&skip={skip}".lstrip("&")) == rows[skip:], "gone on with"
            found += rows
        assert found == whole


@pytest.mark.parametrize("scene", ["key_value", "window", "versioned"], indirect=True)
def test_only_splits_that_can_have_such_rows_are_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = sorted(
        {key[:-12] if scene.definition.kind == "window" else key for key, _ in scene.checkpoint.scan(EVERY_KEY)}
    )
    ends = [*stored[1:], None]
    every = [Split(KeyRange(start, end), 1) for start, end in zip([b"", *stored[1:]], ends, strict=True)]
    monkeypatch.setattr(type(scene.checkpoint), "splits", lambda *_: every)

    def named(query: str) -> int:
        wanted = read_selection(Arguments(from_query_string(query.encode())), scene.definition)
        return len(wanted_splits(scene.checkpoint, scene.definition, wanted, 1))

    assert 0 < named("lower=b&upper=b") < named("lower=b") < len(every)
    assert named("lower=b&upper=a") == 1, "the first one: there is always something to read"
    if scene.definition.kind == "window":
        assert named(f"from={39 * MINUTE}") < named("")


@pytest.mark.parametrize("text", ["", "YQ", "YQ.Yg.Yw", "Y?.", ".é"])
def test_what_is_no_split_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="name one that …/splits gives"):
        read_split(text)


def test_splits_are_told_over_http_and_read_there(client: httpx.Client, worker: OwningWorker) -> None:
    worker.put_all({f"split-{n}": n for n in range(20)})
    worker.commit()
    made = client.post("/v1/snapshots", json={"stores": ["aircraft"]}).json()
    found = 0
    for part in made["stores"]["aircraft"].values():
        answer = client.get(f"{part['path']}/splits", params={"prefix": "split-", "size_bytes": 1})
        assert answer.status_code == 200, answer.text
        for each in answer.json()["splits"]:
            assert each.keys() == {"split", "bytes"}
            rows = client.get(part["path"], params={"prefix": "split-", "split": each["split"]})
            found += pa.ipc.open_stream(rows.content).read_all().num_rows
    assert found == 20
    path = next(iter(made["stores"]["aircraft"].values()))["path"]
    for wrong in ({"size_bytes": 0}, {"skip": 1}, {"columns": "key"}):
        refused = client.get(f"{path}/splits", params=wrong)
        assert (refused.status_code, refused.json()["reason"]) == (422, "INVALID_ARGUMENT")
    assert client.get(path, params={"split": "x"}).status_code == 422
    assert client.post(f"{path}/splits").status_code == 405
    client.delete(f"/v1/snapshots/{made['id']}")
    assert client.get(f"{path}/splits").json()["reason"] == "CURSOR_EXPIRED"
