"""Entries as the JSON array of an answer, and in other formats, made in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from stateline.server.contract.observation import note_rows
from stateline.server.wire.turns import ScanPace, let_others_in

T = TypeVar("T")


async def entries_json(items: Sequence[T], shown: Callable[[T], Mapping[str, Any]]) -> orjson.Fragment:
    """The array of what is shown of these entries."""
    pieces = await in_steps(items, lambda some: orjson.dumps([shown(each) for each in some])[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


async def in_steps(items: Sequence[T], made: Callable[[Sequence[T]], bytes]) -> list[bytes]:
    """What is `made` of these entries, some at a time."""
    note_rows(len(items))
    pace, pieces, at = ScanPace(), list[bytes](), 0
    while at < len(items):
        some = items[at : at + pace.rows]
        with pace.step(len(some)):
            pieces.append(made(some))
        at += len(some)
        if len(pieces) > 1 or at < len(items):
            await let_others_in()
    return pieces
