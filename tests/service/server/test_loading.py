"""Modules that are loaded when an answer needs them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from stateline.server.wire.loading import loaded

_LOADING_S = 0.5


def test_the_event_loop_waits_for_no_module_however_many_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_load.py").write_text(f"import time; time.sleep({_LOADING_S}); READY = True")
    monkeypatch.syspath_prepend(tmp_path)

    async def ask() -> bool:
        await loaded("slow_to_load")
        return bool(__import__("slow_to_load").READY)

    async def turns() -> tuple[int, list[bool]]:
        asked = [asyncio.create_task(ask())]
        while "slow_to_load" not in sys.modules:  # it is, as soon as its loading has begun
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(ask()) for _ in range(2)]
        turned = 0
        while not asked[0].done():
            turned += 1
            await asyncio.sleep(0.01)
        return turned, await asyncio.gather(*asked)

    turned, answers = asyncio.run(turns())
    assert answers == [True] * 3
    assert turned > 5, "the loop stood still"
    sys.modules.pop("slow_to_load")
