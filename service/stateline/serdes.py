"""The ready-made serdes: `string`, `json`, `bytes`, `int32`, `int64`, `float64`, and, around one of those, `windowed`
and `session_windowed` for the keys of a topic of windows or sessions; `time_windowed` for those that Java reads.

What each writes and reads stands in `stateline.serde.plain`.
"""

from typing import TYPE_CHECKING, NoReturn

from stateline.serde.plain import BytesSerde, FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde
from stateline.serde.windowed import TimeWindowedSerde, WindowedSerde

__all__ = [
    "Serde",
    "TimeWindowedSerde",
    "WindowedSerde",
    "bytes",
    "float64",
    "int32",
    "int64",
    "json",
    "session_windowed",
    "string",
    "time_windowed",
    "windowed",
]

string = StringSerde()
json = JsonSerde()
bytes = BytesSerde()  # shadows the builtin in this module alone, so that users write `serdes.bytes`
int32 = IntegerSerde("int32", 4)
int64 = IntegerSerde("int64", 8)
float64 = FloatSerde()

_INSTEAD = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("int", "integer", "long", "bigint"), "int64"),
    **dict.fromkeys(("float", "double"), "float64"),
    **dict.fromkeys(("dict", "list", "object"), "json"),
    **dict.fromkeys(("bytearray", "binary"), "bytes"),
}

if not TYPE_CHECKING:  # a type checker knows what there is, and says so itself

    def __getattr__(name: str) -> NoReturn:
        import difflib

        there = __all__[3:]
        near = [_INSTEAD[name]] if name in _INSTEAD else difflib.get_close_matches(name.lower(), there, n=1)
        use = f"use serdes.{near[0]}. There" if near else "there"
        raise AttributeError(f"There is no serde {name!r}: {use} are serdes.{', serdes.'.join(there)}.")


def windowed(inner: Serde) -> WindowedSerde:
    """Keys of a topic of windows, around keys of this serde."""
    return WindowedSerde(inner, "window")


def session_windowed(inner: Serde) -> WindowedSerde:
    """Keys of a topic of sessions, around keys of this serde."""
    return WindowedSerde(inner, "session")


def time_windowed(inner: Serde) -> TimeWindowedSerde:
    """Keys of a topic of windows, around keys of this serde, for Java's windowed deserializers to read."""
    return TimeWindowedSerde(inner)
