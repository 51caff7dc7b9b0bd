"""Values of tables that functions with stores make."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stateline import App, serdes, stores
from stateline.testing import Record, TestDriver


def test_the_function_sees_each_change_and_its_stores_which_punctuations_share() -> None:
    app = App("transformed")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.int64))
    table = app.ktable(app.table("rows", key=serdes.string, value=serdes.string))

    def numbered(record: Any, seen: Any) -> str | None:
        seen.put(record.key, (seen.get(record.key) or 0) + 1)
        return None if record.value == "none" else f"{record.value}{seen.get(record.key)}"

    table.transform_values(numbered, "numbered", stores=[seen])

    @app.punctuate(every=timedelta(seconds=1), on="stream_time", stores=[seen])
    def reset(at_ms: int, seen: Any) -> None:
        if at_ms >= 1_000:
            seen.put("k", 100)

    with TestDriver(app) as driver:
        driver.pipe_all("rows", [Record("k", value, timestamp_ms=n) for n, value in enumerate(("a", "b", None))])
        assert driver.store("numbered").get("k") == "None3"
        driver.pipe("rows", "k", "none", timestamp_ms=10)
        assert driver.store("numbered").get("k") is None
        driver.pipe("rows", "x", "a", timestamp_ms=1_500)
        driver.pipe("rows", "k", "c", timestamp_ms=1_501)
        assert driver.store("numbered").get("k") == "c101"
