"""Whose a task is, by what several nodes say of it."""

from __future__ import annotations

from itertools import permutations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.server.nodes.node_map import HEARTBEAT, HeldTask, NodeMap, owner_of
from stateline_store import InvalidArgumentError

TASKS = st.sampled_from(["0_0", "0_1", "1_0"])
OFFSETS = st.integers(-1, 2**63 - 1)
MAPS = st.builds(
    NodeMap,
    OFFSETS,
    st.dictionaries(TASKS, st.builds(HeldTask, st.sampled_from(["active", "restoring", "standby"]), OFFSETS)),
    st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("01"), OFFSETS, min_size=1)),
    st.dictionaries(st.sampled_from("pq"), st.fixed_dictionaries({"lag": st.none() | OFFSETS})),
    st.dictionaries(TASKS, OFFSETS),
    st.frozensets(TASKS),
    st.frozensets(TASKS),
    st.dictionaries(st.sampled_from(["worker-0", "worker-1"]), st.text(max_size=3)),
)


@given(st.lists(MAPS))
def test_differences_one_after_the_other_make_each_map(maps: list[NodeMap]) -> None:
    known = NodeMap()
    for now in maps:
        told = orjson.loads(orjson.dumps(now.to_json(known)))
        assert (told == HEARTBEAT) == (now == known)
        known = NodeMap.from_json(told, known)
        assert known == now


def test_a_heartbeat_leaves_the_map_as_it_is() -> None:
    known = NodeMap(1, {"0_0": HeldTask("active", 1)})
    assert NodeMap.from_json(HEARTBEAT, known) is known


def test_differences_add_no_more_keys_than_a_map_may_have() -> None:
    known = NodeMap(1, {f"0_{n}": HeldTask("standby") for n in range(100_000)})
    with pytest.raises(InvalidArgumentError, match="100,001 keys, and 100,000 are allowed"):
        NodeMap.from_json({"event": "map", "tasks": {"1_0": ["standby", -1]}}, known)


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
