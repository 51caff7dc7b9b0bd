"""Whose a task is, by what several nodes say of it."""

from __future__ import annotations

from itertools import permutations

import pytest

from stateline.server.nodes.node_map import HeldTask, NodeMap, owner_of


@pytest.mark.parametrize(
    ("held", "owner"),
    [
        ({}, None),
        ({"one": HeldTask("standby"), "two": HeldTask("standby", 9)}, None),
        ({"one": HeldTask("restoring", 3), "two": HeldTask("standby")}, "one"),
        ({"one": HeldTask("active", 4), "two": HeldTask("active", 3), "three": HeldTask("standby")}, "one"),
        ({"one": HeldTask("restoring", 4), "two": HeldTask("active", 3)}, "one"),
        ({"one": HeldTask("active", 3), "two": HeldTask("restoring", 3)}, "one"),
    ],
)
def test_of_all_that_have_a_task_the_one_of_the_larger_generation_is_its_owner(
    held: dict[str, HeldTask], owner: str | None
) -> None:
    for order in permutations([*held.items(), ("without", None)]):
        maps = [(node, NodeMap(1, {} if each is None else {"0_0": each})) for node, each in order]
        assert owner_of("0_0", maps) == owner
