"""Rows joined with tables that every worker has whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.worker.operators.operator_scene import Given, Scene
from stateline import App, serdes
from stateline.deployment.topics import ensure_topics
from stateline.log import open_log
from stateline_store import RecordError, TopologyError
from support.processes.running_worker import configured, create, eventually, produce, read_all, running

Declared = tuple[App, Callable[..., Any]]


def pair(value: str, found: str | None) -> str:
    return f"{value}|{found}"


def code(key: str | None, value: str) -> str | None:
    """Under which key to look: what the value has before its colon."""
    return value.split(":")[0] or None


def declared(*, left: bool = False) -> App:
    app = App("app")
    codes = app.global_table("codes", key=serdes.string, value=serdes.string)
    rows = app.stream("rows", key=serdes.string, value=serdes.string)
    (rows.left_join if left else rows.join)(codes, pair, on=code).to("out")
    return app


def values(scene: Scene) -> list[str]:
    return sorted((record.value or b"").decode() for record in scene.written("out"))


COUNTS = {"codes": 2, "rows": 3, "out": 3, "dead": 1}  # a global table need not be co-partitioned


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize("left", [False, True], ids=["inner", "left"])
def test_every_row_finds_what_the_topic_had_when_the_worker_started_over_restarts(
    tmp_path: Path, left: bool, guarantee: str
) -> None:
    scene = Scene(declared(left=left), tmp_path, partitions=COUNTS, settings={"processing.guarantee": guarantee})
    codes: list[Given] = [(f"c{n}", f"name-{n}", n) for n in range(6_000)]
    scene.send("codes", [*codes, ("c7", None, 7_000), ("c8", "other", 7_001)])
    rows: list[Given] = [(None if n % 3 else f"k{n}", f"c{n}:row", n) for n in range(0, 6_100, 10)]
    odd: list[Given] = [("k", "c7:deleted", 1), ("k", "c8:changed", 2), ("k", ":no code", 3), (None, None, 4)]
    scene.send("rows", [*rows, *odd])
    scene.work_off()
    known = [pair(f"c{n}:row", f"name-{n}") for n in range(0, 6_000, 10)]
    unknown = [pair(f"c{n}:row", None) for n in range(6_000, 6_100, 10)]
    wanted = [*known, pair("c8:changed", "other")]
    if left:
        wanted += [*unknown, pair("c7:deleted", None), pair(":no code", None)]
    assert values(scene) == sorted(wanted)
    assert scene.failures.dropped == (1 if left else 2)
    scene.send("codes", [("c6000", "new", 1), ("c0", None, 2)])
    scene.send("rows", [("k", "c6000:later", 5), ("k", "c0:later", 6), ("k", "c1:later", 7)])
    scene.work_off()
    wanted += [pair("c6000:later", "new"), pair("c1:later", "name-1"), *([pair("c0:later", None)] if left else [])]
    assert values(scene) == sorted(wanted)


def test_what_changes_while_the_worker_runs_is_seen_on_either_log(bootstrap: str, tmp_path: Path) -> None:
    name = f"global-{uuid4().hex[:8]}"
    app = App(name)
    codes = app.global_table(f"{name}-codes", key=serdes.string, value=serdes.string)
    app.stream(f"{name}-rows", key=serdes.string, value=serdes.string).left_join(codes, pair, on=code).to(f"{name}-out")
    config = configured(app, tmp_path / "state")
    with closing(open_log(bootstrap, tmp_path)) as log:
        create(log, {f"{name}-codes": 2, f"{name}-rows": 1, f"{name}-out": 1})

        def asked() -> bytes | None:
            produce(log, f"{name}-rows", [(b"k", b"c:row", 1)])
            return read_all(log, f"{name}-out", 1)[-1].value if read_all(log, f"{name}-out", 1) else None

        with running(app, config, log):
            for change, wanted in ((b"one", b"c:row|one"), (b"two", b"c:row|two"), (None, b"c:row|None")):
                produce(log, f"{name}-codes", [(b"c", change, 1)])
                eventually(lambda wanted=wanted: asked() == wanted, "the change is seen")  # type: ignore[misc]


@pytest.mark.parametrize("policy", ["fail", "skip", "dead-letter"])
def test_a_record_that_cannot_be_read_ends_the_worker_or_is_left_out(tmp_path: Path, policy: str) -> None:
    settings = {"deserialization.exception.handler": policy, "errors.dead.letter.queue.topic.name": "dead"}
    scene = Scene(declared(), tmp_path, partitions=COUNTS, settings=settings)
    scene.create("dead")
    scene.send("codes", [("a", b"\xff", 1), (None, "no key", 2), ("b", "good", 3)])
    scene.send("rows", [("k", "a:row", 1), ("k", "b:row", 2)])
    if policy == "fail":
        with pytest.raises(RecordError, match="Reading failed on codes-"):
            scene.work_off()
        return
    scene.work_off()
    assert values(scene) == ["b:row|good"]
    assert scene.written("dead") == []


def test_a_row_whose_key_cannot_be_made_is_handled_by_the_policy(tmp_path: Path) -> None:
    app = App("app")
    codes = app.global_table("codes", key=serdes.string, value=serdes.string)
    rows = app.stream("rows", key=serdes.string, value=serdes.string)
    rows.left_join(codes, pair, on=lambda key, value: value.split("-")[1]).to("out")
    scene = Scene(app, tmp_path, partitions=COUNTS, settings={"processing.exception.handler": "skip"})
    scene.send("codes", [("a", "A", 1)])
    scene.send("rows", [("k", "1-a", 1), ("k", "2", 2), ("k", "3-b", 3)])
    scene.work_off()
    assert values(scene) == ["1-a|A", "3-b|None"]
    assert scene.failures.skipped == 1


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    app = declared()
    rows = app.stream("rows")
    with pytest.raises(TopologyError, match="join with a global table: give on=…, a function of"):
        rows.join(app.global_table("codes", store="again"), pair)
    with pytest.raises(TopologyError, match=r"join: on=… is only for global tables. Use "):
        rows.join(app.table("table", key=serdes.string), pair, on=code)
    others = App("other")
    for table in (others.table("far", key=serdes.string), others.ktable(others.table("more", key=serdes.string))):
        with pytest.raises(TopologyError, match="is of another application, or was not declared"):
            app.stream("plain", key=serdes.string).join(table, pair)
    with pytest.raises(TopologyError, match="'theirs' is of another application"):
        rows.join(others.global_table("theirs", key=serdes.string), pair, on=code)
    with pytest.raises(TopologyError, match=r"Global table 'again' is declared in .*, already"):
        app.table("again")
    with pytest.raises(TopologyError, match=r"Store 'table' is declared in .*, already"):
        app.global_table("table")
    log = open_log("embedded", tmp_path)
    with closing(log), closing(log.admin()) as admin, pytest.raises(TopologyError, match="codes"):
        ensure_topics(app.topology(), admin)
