"""The topologies of `OperatorTopologies.java`, declared with Stateline: of the topics `a` and `b`, to `out`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from stateline import (
    App,
    HoppingWindows,
    InputRecord,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
    on_window_close,
    serdes,
    stores,
    until_time_limit,
    until_window_closes,
)
from stateline.dsl.streams import Stream, Table
from stateline.model.windows import AnyWindows

Build: TypeAlias = Callable[[App], None]


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def plus(left: str | None, right: str | None) -> str:
    """What Java makes of `left + "+" + right`."""
    return "+".join("null" if each is None else each for each in (left, right))


def stream(app: App, topic: str) -> Stream:
    return app.stream(topic, key=serdes.string, value=serdes.string)


def joined(kind: str, within: JoinWindows, other: str = "b") -> Build:
    def build(app: App) -> None:
        left = stream(app, "a")
        join = getattr(left, kind)
        join(left if other == "a" else stream(app, other), plus, within=within, store="j").to("out")

    return build


def last(text: str) -> str:
    return text[-24:]


def plus_row(reduced: str, row: str) -> str | None:
    return None if row.endswith("5") else last(f"{reduced}+{row}")


def minus_row(reduced: str, row: str) -> str | None:
    return None if row.endswith("9") else last(f"{reduced}-{row}")


def grouped(what: str) -> Build:
    def group_of(key: str, value: str) -> tuple[str | None, str | None]:
        return None if value.endswith("7") else value[:2], None if value.endswith("3") else key + value

    def build(app: App) -> None:
        table = app.ktable(app.table("a", key=serdes.string, value=serdes.string, store="ta"))
        groups = table.group_by(group_of, name="g")
        match what:
            case "count":
                made = groups.count("st")
            case "reduce":
                made = groups.reduce(plus_row, minus_row, "st")
            case _:
                made = groups.aggregate(
                    str,
                    lambda key, row, reduced: plus_row(reduced, row),
                    lambda key, row, reduced: minus_row(reduced, row),
                    "st",
                    value=serdes.string,
                )
        made.to_stream().to("out")

    return build


WINDOWS: dict[str, AnyWindows] = {
    "tumbling": TumblingWindows(ms(100), grace=ms(60)),
    "hopping": HoppingWindows(ms(100), ms(30), grace=ms(60)),
    "sliding": SlidingWindows(ms(100), grace=ms(60)),
    "session": SessionWindows(ms(30), grace=ms(60)),
}


def added(sign: str) -> Callable[[str, str | None, str], str | None]:
    def add(key: str, value: str | None, reduced: str) -> str | None:
        text = "null" if value is None else value
        return None if text.endswith("5") else last(f"{reduced}{sign}{text}")

    return add


def span(key: Any, length_ms: int | None) -> str:
    """What Java makes of a window: `k1@100-200`."""
    end_ms = key.end_ms if length_ms is None else key.start_ms + length_ms
    return f"{key.key}@{key.start_ms}-{end_ms}"


def cogrouped(windows: AnyWindows | None = None) -> Build:
    def build(app: App) -> None:
        both = stream(app, "a").group_by_key().cogroup(added("A")).cogroup(stream(app, "b").group_by_key(), added("B"))
        if windows is None:
            both.aggregate(str, "st", value=serdes.string).to_stream().to("out")
            return
        merger = (lambda key, one, other: last(f"{one}|{other}")) if isinstance(windows, SessionWindows) else None
        table = both.windowed_by(windows).aggregate(str, "st", value=serdes.string, merger=merger)
        length_ms = None if isinstance(windows, SessionWindows) else windows.size_ms
        named = table.to_stream().map(lambda key, value: (span(key, length_ms), value), key=serdes.string)
        named.to("out")

    return build


def foreign_key(key: str, value: str) -> str | None:
    return None if value.endswith("7") else value.split(":")[0]


def by_foreign_key(kind: str) -> Build:
    def build(app: App) -> None:
        left, right = (
            app.ktable(app.table(topic, key=serdes.string, value=serdes.string, store=f"t{topic}")) for topic in "ab"
        )
        getattr(left, kind)(right, plus, "st", on=foreign_key, name="fk").to_stream().to("out")

    return build


def suppressed(max_records: int | None = None, max_bytes: int | None = None) -> Build:
    def build(app: App) -> None:
        table = app.ktable(app.table("a", key=serdes.string, value=serdes.string, store="ta"))
        waiting = table.suppress(until_time_limit(ms(100)), name="s", max_records=max_records, max_bytes=max_bytes)
        waiting.to_stream().to("out")

    return build


def emitted_on_close(app: App) -> None:
    windows = stream(app, "a").group_by_key().windowed_by(WINDOWS["tumbling"])
    table = windows.emit_strategy(on_window_close()).reduce(lambda reduced, value: value, "st")
    table.to_stream().map(lambda key, value: (span(key, 100), value), key=serdes.string).to("out")


def final(kind: str) -> Build:
    def build(app: App) -> None:
        windows = stream(app, "a").group_by_key().windowed_by(WINDOWS[kind])
        table = windows.reduce(lambda reduced, value: value, "st").suppress(until_window_closes())
        length_ms = None if kind == "session" else 100
        table.to_stream().map(lambda key, value: (span(key, length_ms), value), key=serdes.string).to("out")

    return build


def plus_key(key: str | None, left: str | None, right: str | None) -> str:
    return f"{'null' if key is None else key}={plus(left, right)}"


def keyed(kind: str) -> Build:
    def build(app: App) -> None:
        a, texts = stream(app, "a"), app.topic("b", key=serdes.string, value=serdes.string)
        match kind:
            case "table":
                made = a.left_join(app.table(texts, store="tb"), plus_key)
            case "global":
                made = a.left_join(app.global_table(texts, store="tb"), plus_key, on=lambda key, value: value[:2])
            case _:
                made = a.join(stream(app, "b"), plus_key, within=WITHIN, store="j")
        made.to("out")

    return build


def unlimited(what: str) -> Build:
    def build(app: App) -> None:
        start = datetime.fromtimestamp(3, UTC)
        windows = stream(app, "a").group_by_key().windowed_by(UnlimitedWindows(start))
        table = windows.count("st") if what == "count" else windows.reduce(plus, "st")
        table.to_stream().map(lambda key, value: (f"{key.key}@{key.start_ms}", value), key=serdes.string).to("out")

    return build


def with_grace(kind: str) -> Build:
    def build(app: App) -> None:
        rows = stream(app, "a")
        table = app.table("b", key=serdes.string, value=serdes.string, store="tb", versioned=ms(400))
        if kind == "left_join":  # Kafka Streams ends at a row without a key
            rows = rows.filter(lambda key, value: key is not None)
        getattr(rows, kind)(table, plus, grace=ms(60), store="j").to("out")

    return build


def several_topics(app: App) -> None:
    both = app.stream(["a", "b"], key=serdes.string, value=serdes.string).group_by_key()
    both.reduce(lambda reduced, value: f"{reduced[-20:]}+{value}", "st").to_stream().to("out")


def versioned(what: str) -> Build:
    def build(app: App) -> None:
        if what == "to_table":
            stream(app, "a").to_table("st", versioned=ms(400)).to_stream().to("out")
            return

        def table(topic: str, history: timedelta | None) -> Table:
            serde = serdes.string
            return app.ktable(app.table(topic, key=serde, value=serde, store=f"t{topic}", versioned=history))

        a = table("a", ms(150))
        match what:
            case "filter":
                made = a.filter(lambda key, value: not value.endswith("5"), "st")
            case "map":
                made = a.map_values(lambda key, value: f"{value}!", "st")
            case "group":
                groups = a.group_by(lambda key, value: (value[:2], value), name="g")
                made = groups.reduce(lambda reduced, row: row, lambda reduced, row: f"-{row}", "st")
            case "fk_join" | "fk_left":
                join_by_key = a.join if what == "fk_join" else a.left_join
                made = join_by_key(table("b", ms(150)), plus, "st", on=foreign_key, name="fk")
            case _:
                join = {"join": a.join, "left": a.left_join, "outer": a.outer_join}[what]
                made = join(table("b", None if what == "left" else ms(150)), plus, "st")
        made.to_stream().to("out")

    return build


VERSIONED = ("filter", "map", "join", "left", "outer", "fk_join", "fk_left", "group", "to_table")


def to_chosen(app: App) -> None:
    def even_or_odd(key: str, value: str, record: InputRecord) -> str:
        return "out" if record.timestamp_ms % 2 == 0 else "other"

    stream(app, "a").to(even_or_odd, topics=["out", "other"])


def transformed(app: App) -> None:
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.int64))

    def numbered(record: InputRecord, seen: Any) -> str | None:
        number = (seen.get(record.key) or 0) + 1
        seen.put(record.key, number)
        value = "null" if record.value is None else record.value
        return None if number % 5 == 0 else f"{record.key}:{value}#{number}"

    table = app.ktable(app.table("a", key=serdes.string, value=serdes.string, store="ta"))
    table.transform_values(numbered, "st", stores=[seen]).to_stream().to("out")


WITHIN = JoinWindows(ms(40), grace=ms(30))
TOPOLOGIES: dict[str, Build] = {
    "stream_inner": joined("join", WITHIN),
    "stream_left": joined("left_join", WITHIN),
    "stream_outer": joined("outer_join", WITHIN),
    "stream_lopsided": joined("outer_join", JoinWindows(ms(40), before=ms(-5), after=ms(90), grace=ms(30))),
    "stream_self": joined("join", WITHIN, other="a"),
    "stream_self_one_store": joined("join", WITHIN, other="a"),
    "cogroup": cogrouped(),
    **{f"cogroup_{name}": cogrouped(windows) for name, windows in WINDOWS.items()},
    **{f"table_{what}": grouped(what) for what in ("count", "reduce", "aggregate")},
    "fk_inner": by_foreign_key("join"),
    "fk_left": by_foreign_key("left_join"),
    "emit_on_close": emitted_on_close,
    **{f"final_{kind}": final(kind) for kind in ("tumbling", "session")},
    **{f"keyed_{kind}": keyed(kind) for kind in ("table", "global", "streams")},
    "grace_inner": with_grace("join"),
    "grace_left": with_grace("left_join"),
    **{f"versioned_{what}": versioned(what) for what in VERSIONED},
    "to_chosen": to_chosen,
    "transform_values": transformed,
    "suppress_time_limit": suppressed(),
    "suppress_max_records": suppressed(max_records=2),
    "suppress_max_bytes": suppressed(max_bytes=120),
    "topics_reduce": several_topics,
    "unlimited_count": unlimited("count"),
    "unlimited_reduce": unlimited("reduce"),
}
