"""Streams that part and come together again, and several ways from one table: the order of rows, and nothing lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, InputRecord, SessionView, SessionWindows, TumblingWindows, serdes, until_window_closes
from stateline_store import RecordError, RetryLaterError, TopologyError

BASE_MS = 1_700_000_000_000
SECOND = timedelta(seconds=1)


def test_rows_that_parted_and_are_merged_again_stay_in_order(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    odd, even = stream.filter(lambda key, value: int(value) % 2 == 1), stream.filter_not(lambda k, v: int(v) % 2 == 1)
    merged = even.merge(odd)
    merged.to("out")
    merged.to_table("newest")
    merged.group_by_key().windowed_by(TumblingWindows(SECOND)).count("per_second")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("k", n, BASE_MS + n * 600) for n in range(51)])
    scene.work_off()
    assert [record.value for record in scene.written("out")] == [b"%d" % n for n in range(51)]
    assert scene.rows("newest") == {b"k": (b"50", BASE_MS + 30_000)}
    assert scene.failures.dropped == 0
    assert sum(int.from_bytes(count, "big") for count, _ in scene.rows("per_second").values()) == 51


def test_two_ways_into_one_topic_keep_the_order(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    stream.filter(lambda key, value: int(value) % 2 == 0).to("out")
    stream.filter_not(lambda key, value: int(value) % 2 == 0).to("out")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("k", n, BASE_MS + n) for n in range(40)])
    scene.work_off()
    assert [record.value for record in scene.written("out")] == [b"%d" % n for n in range(40)]


def test_two_topics_that_lie_there_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    app = App("app")
    one, other = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("one", "other"))
    one.merge(other).group_by_key().windowed_by(TumblingWindows(SECOND)).count("per_second")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("one", [("k", n, BASE_MS + n * 100) for n in range(300)])
    scene.send("other", [("k", n, BASE_MS + n * 100 + 50) for n in range(300)])
    scene.work_off()
    assert scene.failures.dropped == 0


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_each_of_two_suppressions_of_a_table_gives_every_final_result(tmp_path: Path, guarantee: str) -> None:
    app = App("app")
    grouped = app.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    counts = grouped.windowed_by(TumblingWindows(SECOND)).count("counts", retention=timedelta(hours=1))
    for topic in ("one", "other"):
        counts.suppress(until_window_closes()).to_stream().to(topic)
    scene = Scene(app, tmp_path, partitions=1, settings={"processing.guarantee": guarantee})
    for start in range(4):
        scene.send("in", [("k", 0, BASE_MS + start * 1_000)])
        scene.work_off()
    for topic in ("one", "other"):
        starts = [serdes.windowed(serdes.string).deserialize(r.key or b"").start_ms for r in scene.written(topic)]
        assert starts == [BASE_MS, BASE_MS + 1_000, BASE_MS + 2_000]


def test_two_streams_do_not_mix_in_one_repartition_topic() -> None:
    app = App("app")
    orders, clicks = (app.stream(topic, key=serdes.string, value=serdes.string) for topic in ("orders", "clicks"))
    grouped = orders.group_by(lambda key, value: value, name="by-value")
    grouped.count("one")
    grouped.count("two")  # the same rows once more
    with pytest.raises(
        TopologyError, match=r"already repartitioned through 'app-by-value-repartition' .* Give this one another name"
    ):
        clicks.group_by(lambda key, value: value, name="by-value")


def test_a_processor_reads_an_operators_store_and_does_not_write_it(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    visits = stream.group_by_key().windowed_by(SessionWindows(SECOND)).count("visits").store
    seen: list[int] = []

    @app.process("look", key=serdes.string, value=serdes.string, stores=[visits])
    def look(record: InputRecord, visits: SessionView) -> None:
        for session in visits.fetch(record.key):
            seen.append(session.value)
            if record.value == "remove":
                visits.remove(record.key, session.start_ms, session.end_ms)

    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("k", n, BASE_MS + n) for n in range(3)])
    scene.work_off()
    scene.send("look", [("k", "only", BASE_MS)])
    scene.work_off()
    assert seen == [3]
    scene.send("look", [("k", "remove", BASE_MS)])
    with pytest.raises(RecordError, match="'visits' is written by an operator"):
        scene.work_off()


def test_a_dead_letter_of_a_slice_that_is_done_again_is_written_once(tmp_path: Path) -> None:
    app = App("app")
    failures = iter([True, True, False])

    def fails(key: str, value: str) -> str:
        if value == "bad":
            raise ValueError(value)
        if value == "later" and next(failures, False):
            raise RetryLaterError("not now")
        return value

    app.stream("in", key=serdes.string, value=serdes.string).map_values(fails).to("out")
    settings = {
        "processing.guarantee": "exactly_once_v2",
        "processing.exception.handler": "dead-letter",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    scene = Scene(app, tmp_path, partitions=1, settings=settings)
    scene.create("dead")
    scene.send("in", [("k", value, BASE_MS) for value in ("good", "bad", "later")])
    scene.work_off()
    assert [record.value for record in scene.written("out")] == [b"good", b"later"]
    assert [record.value for record in scene.written("dead")] == [b"bad"]


def test_a_session_of_the_last_moment_there_is_is_counted(tmp_path: Path) -> None:
    app = App("app")
    stream = app.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().windowed_by(SessionWindows(SECOND)).count("visits")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("k", 0, (1 << 63) - 1)])
    scene.work_off()
    assert len(scene.rows("visits")) == 1
