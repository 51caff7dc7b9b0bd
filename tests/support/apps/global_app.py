"""The application of the tests of a global table on disk."""

from __future__ import annotations

from stateline import App, serdes
from stateline.serde.plain import Serde


def pair(value: str, found: object) -> str:
    return f"{value}|{found}"


def code(key: str | None, value: str) -> str:
    return value


def build(*, value: Serde = serdes.string, persistent: bool = True) -> App:
    """Rows, each joined with the code that it is."""
    app = App("codes-app")
    codes = app.global_table("codes", key=serdes.string, value=value, persistent=persistent)
    app.stream("rows", key=serdes.string, value=serdes.string).left_join(codes, pair, on=code).to("out")
    return app


app = build()
