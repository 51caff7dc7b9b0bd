"""The format of an answer (by `format=` or `Accept`), its columns, and its details."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from stateline.serde.plain import shown
from stateline.server.contract.arguments import Arguments
from stateline_store import InvalidArgumentError, NotAcceptableError

JSON, NDJSON, CSV = "application/json", "application/x-ndjson", "text/csv"
ARROW = "application/vnd.apache.arrow.stream"  # IANA
FORMATS = {"json": JSON, "ndjson": NDJSON, "csv": CSV, "arrow": ARROW}
SHAPING = ("format", "columns", "details")
_REFUSED = re.compile(r"(?:^|;)\s*q=0(?:\.0{0,3})?\s*(?:;|$)", re.IGNORECASE)  # RFC 9110, 12.4.2


@dataclass(frozen=True, slots=True)
class Shape:
    """The wanted format and parts of an answer."""

    media_type: str | None = None
    """That of `format`; None leaves it to `Accept`."""
    columns: tuple[str, ...] | None = None
    """Members of the answer, or of its entries; None for all."""
    details: bool = True
    """Whether it has `position` and `partitions`."""

    @classmethod
    def read(cls, arguments: Arguments) -> Shape:
        columns = arguments.text("columns")
        name = arguments.choice("format", "", FORMATS)
        details = arguments.choice("details", "all", ("all", "none")) == "all"
        return cls(FORMATS.get(name), None if columns is None else tuple(columns.split(",")), details)

    def check_columns(self, known: Collection[str]) -> None:
        """Raise `InvalidArgumentError` for a column that this answer does not have, or that is named twice."""
        for name in self.columns or ():
            if name not in known:
                raise InvalidArgumentError(
                    f"columns={shown(name)} is no column of this answer: it has {', '.join(known)}."
                )
            if self.columns is not None and self.columns.count(name) > 1:
                raise InvalidArgumentError(f"columns={shown(','.join(self.columns))} names {name!r} twice.")

    def only(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the columns of a result or of an entry. `key_text` comes with `key`. A result with entries is returned
        unchanged, because its entries have only their columns."""
        if self.columns is None or "entries" in result:
            return result
        members = {name: result[name] for name in self.columns}
        if "key" in members and "key_text" in result:
            members["key_text"] = result["key_text"]
        return members


WHOLE = Shape()


def wanted_format(request: Request, shape: Shape, *available: str, why: str = "") -> str:
    """Return the media type of the answer: that of `format`, or the first available type that `Accept` names.

    Weights are ignored, except 0: it refuses a type. `why` begins the message. Raises `NotAcceptableError` if none is
    accepted.
    """
    accept = request.headers.get("accept", "")
    if shape.media_type is not None:
        wanted, refused = [shape.media_type], []
    else:
        wanted, refused = accepted(accept), accepted(accept, refused=True)
    if not wanted:
        wanted = ["*/*"]
    for each in wanted:
        for media_type in available:
            if media_type not in refused and _covers(each, media_type):
                return media_type
    asked = "format" if shape.media_type is not None else f"Accept: {shown(accept)}"
    which = "that" if len(available) == 1 else "one of these"
    raise NotAcceptableError(
        f"This answer cannot be had as {asked} asks: {why}it is {' or '.join(available)}. Ask for {which}, with Accept "
        "or format."
    )


def check_format(request: Request, media_type: str) -> None:
    """Raise `NotAcceptableError` unless the client accepts this type, the only one."""
    wanted_format(request, WHOLE, media_type)


def accepted(header: str, *, refused: bool = False) -> list[str]:
    """Return what a header such as `Accept` names and does not refuse, or what it refuses: in order and lower case."""
    split = (part.partition(";") for part in header.split(","))
    parts = [(name.strip().lower(), parameters) for name, _, parameters in split]
    return [name for name, parameters in parts if name and (_REFUSED.search(parameters) is not None) == refused]


def take_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the headers of a request accept JSON for certain. Cheap; False if a closer look is needed."""
    for name, value in headers:
        if name == b"accept" and (b"q=0" in value or not (b"*/*" in value or b"application/json" in value)):
            return False
    return True


def _covers(given: str, media_type: str) -> bool:
    return given in ("*/*", "*", media_type) or (given.endswith("/*") and media_type.startswith(given[:-1]))
