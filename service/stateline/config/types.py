"""What settings accept: types that pydantic checks, each with the words of its error message."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from stateline_store.state_store import IsolationLevel


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a setting accepts, in the words of its error message."""

    text: str


def _not_a_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")  # pydantic would read true as 1
    return value


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _not_empty(value: object) -> object:
    if value == "":
        raise ValueError("empty")  # a Path would take it for the working directory
    return value


def _addresses(value: str) -> str:
    if value != "*":
        for each in value.split(","):
            ipaddress.ip_network(each.strip())
    return value


_ORIGIN = r"https?://[A-Za-z0-9._~-]+(:\d{1,5})?"
_MAX_INT = 2**31 - 1  # what Kafka and librdkafka accept: about 24 days of milliseconds
_MAX_LONG = 2**63 - 1
_Whole = Annotated[int, BeforeValidator(_not_a_boolean)]
Milliseconds = Annotated[
    _Whole, Field(ge=1, le=_MAX_INT), Allowed(f"a whole number of milliseconds from 1 to {_MAX_INT}")
]
MillisecondsOrUnlimited = Annotated[
    _Whole,
    Field(ge=-1, le=_MAX_LONG),
    Allowed(f"-1 (no limit) or a whole number of milliseconds from 0 to {_MAX_LONG}"),
]
Wait = Annotated[_Whole, Field(ge=0, le=_MAX_INT), Allowed(f"a whole number of milliseconds from 0 to {_MAX_INT}")]
Count = Annotated[_Whole, Field(ge=1, le=_MAX_INT), Allowed(f"a whole number from 1 to {_MAX_INT}")]
Percent = Annotated[_Whole, Field(ge=1, le=100), Allowed("a whole number from 1 to 100")]
Text = Annotated[str, Field(min_length=1), Allowed("a text that is not empty")]
OptionalText = Annotated[str | None, Field(min_length=1), Allowed("a text that is not empty")]
OptionalAddresses = Annotated[
    Annotated[str, AfterValidator(_addresses)] | None,
    BeforeValidator(_joined),
    Allowed("addresses or networks (10.0.0.0/8), separated by commas, or * for all"),
]
OptionalOrigins = Annotated[
    str | None,
    BeforeValidator(_joined),
    Field(pattern=rf"^{_ORIGIN}(\s*,\s*{_ORIGIN})*$"),
    Allowed("origins as https://dash.example or http://localhost:3000, without a path, separated by commas"),
]
Switch = Annotated[bool, BeforeValidator(_lower), Allowed("true or false")]
AccessLogging = Annotated[Literal["off", "slow", "on"], BeforeValidator(_lower), Allowed("off, slow or on")]
Handler = Annotated[
    Literal["fail", "skip", "dead-letter"], BeforeValidator(_lower), Allowed("fail, skip or dead-letter")
]
ProductionHandler = Annotated[Literal["fail", "skip"], BeforeValidator(_lower), Allowed("fail or skip")]
Guarantee = Annotated[
    Literal["at_least_once", "exactly_once_v2"],
    BeforeValidator(_lower),
    Allowed("at_least_once or exactly_once_v2"),
]
Isolation = Annotated[IsolationLevel, BeforeValidator(_lower), Allowed("READ_UNCOMMITTED or READ_COMMITTED")]
Servers = Annotated[
    str,
    BeforeValidator(_joined),
    Field(pattern=r"^(embedded(:.+)?|[^\s,:]+:\d+(\s*,\s*[^\s,:]+:\d+)*)$"),
    Allowed("embedded, embedded:PATH, or host:port[,host:port…] with ports from 1 to 65535"),
]
LogFormat = Annotated[Literal["text", "json"], BeforeValidator(_lower), Allowed("text or json")]
PipelineDrivers = Annotated[Literal["each", "one"], BeforeValidator(_lower), Allowed("each or one")]
UpgradeFrom = Annotated[Literal["v1"] | None, BeforeValidator(_lower), Allowed("v1, or nothing")]
Upgrade = Annotated[Literal["in_place", "roll_over"] | None, BeforeValidator(_lower), Allowed("in_place or roll_over")]
BytesOrUnlimited = Annotated[
    _Whole, Field(le=_MAX_LONG), Allowed(f"-1 (no limit) or a number of bytes from 1 to {_MAX_LONG}")
]
Replication = Annotated[_Whole, Field(le=32767), Allowed("-1 (the broker's default) or a number from 1 to 32767")]
CountOrUnlimited = Annotated[
    _Whole, Field(le=_MAX_INT), Allowed(f"-1 (no limit) or a whole number from 1 to {_MAX_INT}")
]
Directory = Annotated[Path, BeforeValidator(_not_empty), Allowed("a directory")]
OptionalFile = Annotated[Path | None, BeforeValidator(_not_empty), Allowed("a file")]
Port = Annotated[_Whole, Field(ge=0, le=65535), Allowed("a port from 0 (any free one) to 65535")]
PassedOn = Annotated[dict[str, str], Allowed("text, numbers, true or false")]
