"""What starts over together, and what is refused because something would be counted twice; where to. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from stateline import serdes, stores
from stateline.cli.reset.found import ResetFacts, others_of
from stateline.cli.reset.plan import Plan, plan_of
from stateline.cli.reset.scope import Asked
from stateline.cli.reset.where_to import WhereTo, where_to
from stateline.deployment.stores.resets import Reset, ResetWork, Stale, begun, done
from stateline.dsl.app import App
from stateline.log.interface import TopicInfo
from stateline.model.topology import Topology
from stateline_store import DamagedDataError, DoesNotExistError, InvalidArgumentError, TopicPartition

NOW_MS = 1_795_259_814_382
NOWHERE: dict[str, Any] = {
    "to_earliest": False, "to_latest": False, "to_offset": None, "to_datetime": None, "by_duration": None,
    "shift_by": None, "now_ms": NOW_MS,
}  # fmt: skip


def application() -> Topology:
    """`t` is a table of `more`, in 0; `in` is counted by 1 and sent on to `out`, which 2 counts; pipeline `p` makes
    `made` of `in`, which 3 counts, and of which `q` makes `more`."""
    app = App("app")
    strings: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    source, out = app.topic("in", **strings), app.topic("out", **strings)
    made, more = app.topic("made", **strings), app.topic("more", **strings)
    for number, (topic, forwards) in enumerate([(source, [out]), (out, []), (made, [])]):
        kept = app.store(stores.key_value(f"s{number}", **strings))
        register = app.process(topic, stores=[kept], forwards=forwards, name=f"p{number}")
        register(_two if not forwards else _three)
    app.table(more, store="t")
    app.pipeline(reads=source, writes=made, key="k", name="p")(_frame)
    app.pipeline(reads=made, writes=more, key="k", name="q")(_frame)
    return app.topology()


def _two(record: object, store: object) -> None: ...


def _three(record: object, store: object, out: object) -> None: ...


def _frame(frame: object) -> object:
    return frame


TOPICS = ["in", "out", "made", "more", "app-s0-changelog", "app-s1-changelog", "app-p-epochs", "app-old-changelog"]


def found(*, end: int = 10) -> ResetFacts:
    topics = {name: TopicInfo(name, 1, name) for name in TOPICS}
    bounds = {TopicPartition(name, 0): (2, end) for name in TOPICS}
    return ResetFacts(topics, bounds, {TopicPartition("in", 0): 8}, {}, (), {"p": "/p/checkpoint"})


def planned(*, end: int = 10, **asked: Any) -> Plan:
    return plan_of(application(), Asked(**asked), found(end=end))


def test_the_whole_application_goes_with_its_topics_and_reads_what_it_writes_from_its_end() -> None:
    plan = planned(delete_results=True)
    assert plan.work == ResetWork(
        everything=True,
        subtopologies=(0, 1, 2, 3),
        stores=("s0", "s1", "s2", "t"),
        pipelines=("p", "q"),
        changelogs=("app-s0-changelog", "app-s1-changelog"),
        internal=("app-p-epochs",),
        results=("made", "more"),
        offsets={"in": {"0": 2}, "out": {"0": 10}, "made": {"0": 0}, "more": {"0": 0}},
    )
    assert "delete the checkpoint /p/checkpoint" in plan.steps
    assert "set the offsets of in: 0: 8 to 2" in plan.steps
    assert any("app-old-changelog" in note for note in plan.notes)


def test_what_no_code_declares_goes_when_it_is_named() -> None:
    assert "app-old-changelog" in planned(delete_results=True, internal_topics=("app-old-changelog",)).work.internal
    with pytest.raises(DoesNotExistError, match="there are app-old-changelog"):
        planned(delete_results=True, internal_topics=("in",))
    assert others_of("app", ["app-b-store-changelog", "app-x"], []) == ["app-b-store-changelog"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "Pipeline 'q' reads made, .*--delete-results"),
        ({"subtopologies": (1,)}, "subtopology 2, which reads it, .* --subtopology 2"),
        ({"pipelines": ("p",)}, "subtopology 3, which reads it, .* --subtopology 3"),
        ({"pipelines": ("p",), "subtopologies": (3,)}, "pipeline 'q', which reads it, .* --pipeline q"),
        ({"pipelines": ("q",), "to": WhereTo("latest")}, "Pipeline q starts over with the first records"),
        ({"to": WhereTo("time", 1)}, "Leave out where to, or start over what is no pipeline: --subtopology 0"),
    ],
)
def test_what_would_be_counted_twice_is_refused_with_the_way_out(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        planned(**asked)


def test_a_pipeline_of_which_only_a_table_is_kept_starts_over_alone() -> None:
    work = planned(pipelines=("q",)).work
    assert (work.pipelines, work.subtopologies, work.stores, work.results) == (("q",), (), (), ())


def test_names_that_there_are_not_are_refused_with_those_that_there_are() -> None:
    named: list[tuple[dict[str, Any], str]] = [
        ({"subtopologies": (99,)}, "0, 1, 2, 3"), ({"stores": ("no",)}, "s0, s1, s2, t"),
        ({"pipelines": ("no",)}, "p, q"),
    ]  # fmt: skip
    for asked, there in named:
        with pytest.raises(DoesNotExistError, match=f"there are {there}"):
            planned(**asked)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, WhereTo("earliest")),
        ({"to_latest": True}, WhereTo("latest")),
        ({"to_offset": 7}, WhereTo("offset", 7)),
        ({"shift_by": -3}, WhereTo("shift", -3)),
        ({"to_datetime": "1795259814382"}, WhereTo("time", NOW_MS)),
        ({"to_datetime": "1970-01-01T00:01:00"}, WhereTo("time", 60_000)),
        ({"to_datetime": "1970-01-01T01:01:00+01:00"}, WhereTo("time", 60_000)),
        ({"by_duration": "PT90M"}, WhereTo("time", NOW_MS - 90 * 60_000)),
        ({"by_duration": "P1DT0.5S"}, WhereTo("time", NOW_MS - 86_400_500)),
    ],
)
def test_where_to_is_said_as_to_kafkas_tool(given: dict[str, Any], wanted: WhereTo) -> None:
    assert where_to(**NOWHERE | given) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"to_latest": True, "shift_by": 1}, "--to-latest and --shift-by are different places"),
        ({"to_datetime": "yesterday"}, "is no time"),
        ({"by_duration": "P"}, "is no duration"),
        ({"by_duration": "90m"}, "is no duration"),
    ],
)
def test_what_is_no_place_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        where_to(**NOWHERE | given)


def test_a_directory_that_missed_several_resets_finds_all_that_is_older() -> None:
    first = done(begun(None, 0, ResetWork(stores=("a",))))
    second = done(begun(first, 0, ResetWork(stores=("b",), pipelines=("p",))))
    assert second.epoch > first.epoch
    assert second.stale(0) == Stale(False, frozenset({"a", "b"}), frozenset({"p"}))
    assert second.stale(first.epoch) == Stale(False, frozenset({"b"}), frozenset({"p"}))
    assert not second.stale(second.epoch)
    third = begun(second, 0, ResetWork(everything=True))
    assert third.stale(second.epoch) == Stale(True)
    assert Reset.decode(third.encode()) == third
    assert begun(None, NOW_MS * 2, ResetWork()).epoch > NOW_MS * 2  # a topic that forgot them, a directory that did not
    with pytest.raises(DamagedDataError):
        Reset.decode(b"{}")
