"""A task remembers which topics its stores were made from, and notices one that was created anew."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from service.worker.operators.operator_scene import Scene
from stateline import App, serdes
from stateline.worker.files.topic_ids import recreated, remember, unchanged


def test_a_task_that_remembers_nothing_takes_no_topic_for_a_new_one(tmp_path: Path) -> None:
    assert recreated(tmp_path, {"flights": "one"}) == []


def test_a_topic_with_another_id_was_created_anew_and_the_others_were_not(tmp_path: Path) -> None:
    remember(tmp_path, {"flights": "one", "weather": "two"})
    assert recreated(tmp_path, {"flights": "one", "weather": "two"}) == []
    assert recreated(tmp_path, {"flights": "three", "weather": "two"}) == ["flights"]
    assert recreated(tmp_path, {"weather": "four", "flights": "three"}) == ["weather", "flights"]


def test_a_topic_that_was_never_remembered_was_not_created_anew(tmp_path: Path) -> None:
    remember(tmp_path, {"flights": "one"})
    assert recreated(tmp_path, {"flights": "one", "weather": "two"}) == []


def test_only_what_is_remembered_with_the_same_id_is_known_to_be_unchanged(tmp_path: Path) -> None:
    assert unchanged(tmp_path, {"flights": "one"}) == []
    remember(tmp_path, {"flights": "one", "weather": "two"})
    assert unchanged(tmp_path, {"flights": "one", "weather": "three", "airports": "four"}) == ["flights"]


def test_it_is_noticed_once_remembering_settles_it(tmp_path: Path) -> None:
    remember(tmp_path, {"flights": "one"})
    remember(tmp_path, {"flights": "two"})
    assert recreated(tmp_path, {"flights": "two"}) == []
    assert recreated(tmp_path, {"flights": "one"}) == ["flights"]


def test_the_file_is_written_only_when_something_changed(tmp_path: Path) -> None:
    remember(tmp_path, {"flights": "one", "weather": "two"})
    written = (tmp_path / "topics.json").stat().st_ino
    remember(tmp_path, {"weather": "two", "flights": "one"})
    assert (tmp_path / "topics.json").stat().st_ino == written
    remember(tmp_path, {"flights": "one"})
    assert (tmp_path / "topics.json").stat().st_ino != written


def test_a_file_that_cannot_be_read_is_named_and_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "topics.json").write_bytes(b'{"flights": ')
    assert recreated(tmp_path, {"flights": "one"}) == []
    assert str(tmp_path / "topics.json") in caplog.text
    remember(tmp_path, {"flights": "one"})
    assert recreated(tmp_path, {"flights": "two"}) == ["flights"]


@pytest.mark.parametrize(("topic", "rebuilt"), [("in", ": task 0_0 rebuilds newest"), ("app-by-value-repartition", "")])
def test_what_is_said_of_a_topic_that_was_created_anew_names_the_tables_that_are_rebuilt_if_there_are_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, rebuilt: str
) -> None:
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.string)
    app.table(source, store="newest")
    app.stream(source).group_by(lambda key, value: value, name="by-value").count("counts")
    scene = Scene(app, tmp_path, partitions=1)
    scene.send("in", [("a", "x", 1)])
    scene.work_off()
    with closing(scene.log.admin()) as admin:
        admin.delete_topics([topic])
    scene.create(topic)
    scene.send("in", [("a", "x", 2)])
    scene.work_off()
    assert f"Topic {topic} was created again{rebuilt}" in caplog.messages
