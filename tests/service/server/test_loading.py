"""Modules that are loaded when an answer needs them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from threading import Event

import pytest

from stateline.server.wire import loading
from stateline.server.wire.loading import loaded
from support.run.patience import HANGING_S


def test_the_event_loop_waits_for_no_module_however_many_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = Event()
    monkeypatch.setattr(loading, "goes_on", goes_on, raising=False)
    waits = f"from stateline.server.wire.loading import goes_on; READY = goes_on.wait({HANGING_S})"
    (tmp_path / "slow_to_load.py").write_text(waits)
    monkeypatch.syspath_prepend(tmp_path)

    async def ask() -> bool:
        await loaded("slow_to_load")
        return bool(__import__("slow_to_load").READY)

    async def answers() -> list[bool]:
        asked = [asyncio.create_task(ask())]
        while "slow_to_load" not in sys.modules:  # it is, as soon as its loading has begun
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(ask()) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not any(each.done() for each in asked)
        goes_on.set()  # if the loop stood still, it would never come here
        return await asyncio.gather(*asked)

    assert asyncio.run(answers()) == [True] * 3
    sys.modules.pop("slow_to_load")
