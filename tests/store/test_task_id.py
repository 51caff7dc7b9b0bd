"""`TaskId` and its text."""

from __future__ import annotations

import pytest

from stateline_store import InvalidArgumentError
from stateline_store.task_id import TaskId


def test_a_task_id_is_read_as_it_is_written() -> None:
    assert str(TaskId(0, 3)) == f"{TaskId(0, 3)}" == "0_3"
    assert TaskId.parse("12_30") == TaskId(12, 30)


def test_task_ids_are_in_the_order_of_their_numbers() -> None:
    assert sorted(map(TaskId.parse, ["1_0", "0_10", "0_9"])) == [(0, 9), (0, 10), (1, 0)]


@pytest.mark.parametrize("text", ["", "0", "0_", "_1", "0_1_2", "a_1", "-1_0", "0_3\n"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a task id"):
        TaskId.parse(text)
