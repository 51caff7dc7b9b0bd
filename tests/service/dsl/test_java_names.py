"""Who writes a name of Java's is told the one of Python."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

import stateline
from stateline import App, JoinWindows, SessionWindows, TumblingWindows, serdes
from stateline.model.java_names import CLASSES
from stateline.processing.processor_context import ProcessorContext, TaskContext
from stateline_store.task_id import TaskId

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
MINUTE = timedelta(minutes=1)


CONTEXT = ProcessorContext(TaskContext("app", TaskId(0, 0)))
STREAM = App("app").stream("t", **TEXTS)
# What is asked, for which name of Java's → what is said.
NAMES: list[tuple[object, str, str]] = [
    (App("app"), "globalTable", "App has no attribute 'globalTable': use .global_table"),
    (STREAM, "mapValues", "use .map_values"),
    (STREAM, "leftJoin", "use .left_join"),
    (STREAM.group_by_key(), "windowedBy", "use .windowed_by"),
    (STREAM.group_by_key().windowed_by(TumblingWindows(MINUTE)), "emitStrategy", "use .emit_strategy"),
    (App("app").table("t", **TEXTS), "toStream", "app.ktable(…) of it, then .to_stream(…)"),
    (STREAM.to_table("kept"), "filterNot", "use .filter_not"),
    (CONTEXT, "currentStreamTimeMs", "use .current_stream_time_ms"),
    (CONTEXT, "schedule", "declare a function of its own with @app.punctuate(every=…, on=…"),
    (TumblingWindows, "ofSizeWithNoGrace", "use TumblingWindows(grace=…, size=…)"),
    (SessionWindows, "ofInactivityGapAndGrace", "use SessionWindows(grace=…, gap=…)"),
    (JoinWindows, "of", "use JoinWindows(difference=…, before=…, after=…, grace=…)"),
]


@pytest.mark.parametrize(("of", "name", "said"), NAMES)
def test_a_name_of_java_is_refused_with_the_one_of_python(of: object, name: str, said: str) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(of, name)
    assert said in str(refused.value)


@pytest.mark.parametrize("of", [STREAM, TumblingWindows, CONTEXT])
def test_other_names_are_refused_without_a_hint(of: object) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'shuffle'$"):
        getattr(of, "shuffle")  # noqa: B009 - it raises
    assert not hasattr(of, "__nothing__")


def test_windows_can_still_be_copied_and_pickled() -> None:
    windows = TumblingWindows(MINUTE)
    assert windows == copy.deepcopy(windows) == pickle.loads(pickle.dumps(windows))


@pytest.mark.parametrize(("name", "said"), [("TimeWindows", "TumblingWindows(size)"), ("StreamsBuilder", "use App.")])
def test_a_class_of_java_is_refused_with_the_one_of_python(name: str, said: str) -> None:
    with pytest.raises(ImportError, match=rf"^stateline has no {name}: ") as refused:
        exec(f"from stateline import {name}")
    assert said in str(refused.value)


def test_no_class_of_java_hides_a_name_and_others_are_absent_as_in_any_module() -> None:
    assert not {*CLASSES} & {*dir(stateline)}
    assert not hasattr(stateline, "Shuffle")
