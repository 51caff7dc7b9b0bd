"""Types of settings that pydantic checks, each with the text of its error message."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from stateline.config.embedded import embedded_path
from stateline_store.state_store import IsolationLevel


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values of a setting, for its error message."""

    text: str


def _not_a_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")  # pydantic would read true as 1
    return value


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _not_empty(value: object) -> object:
    if value == "":
        raise ValueError("empty")  # a Path would take it for the working directory
    return value


def _location(value: str) -> str:
    scheme, mark, rest = value.partition("://")
    if mark and (scheme == "file" or not _SCHEME.fullmatch(scheme) or not rest.strip("/")):
        raise ValueError("no URL of a file system that nodes share")
    if not mark and not Path(value).is_absolute():
        raise ValueError("relative")
    return value.rstrip("/") or "/"


def _minus_one_or_positive(value: int) -> int:
    if value < 1 and value != -1:
        raise ValueError("neither -1 nor positive")
    return value


def _servers(value: str) -> str:
    servers = value.split(",") if embedded_path(value, Path()) is None else []
    if not all(1 <= int(server.rpartition(":")[2]) <= 65535 for server in servers):
        raise ValueError("no such port")
    return value


def _addresses(value: str) -> str:
    if value != "*":
        for each in value.split(","):
            ipaddress.ip_network(each.strip())
    return value


def _listen(value: str, least: int = 0) -> str:
    found = _HOST_AND_PORT.fullmatch(value)
    if found is None or not least <= int(found["port"]) <= 65535:
        raise ValueError("no such address")
    if found["ipv6"] is not None:
        ipaddress.IPv6Address(found["ipv6"])
    return value


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or value.rstrip("/") != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("not a URL of a server")
    _listen(parts.netloc if parts.port is not None else f"{parts.netloc}:80", 1)
    return value


NODE_NAME = r"[A-Za-z0-9._-]{1,200}"
"""The pattern of node names. Names of static members begin with it: Kafka's clients accept these characters, at most
249. Certificates are issued to it."""
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[(?P<ipv6>[0-9A-Fa-f:.]+)\]):(?P<port>[0-9]{1,5})")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_ORIGIN = r"https?://[A-Za-z0-9._~-]+(:\d{1,5})?"
_MAX_INT = 2**31 - 1  # the limit of Kafka and librdkafka: about 24 days in milliseconds
_MAX_LONG = 2**63 - 1
_Whole = Annotated[int, BeforeValidator(_not_a_boolean)]
_OrUnlimited = Annotated[_Whole, AfterValidator(_minus_one_or_positive)]
Milliseconds = Annotated[
    _Whole, Field(ge=1, le=_MAX_INT), Allowed(f"a whole number of milliseconds from 1 to {_MAX_INT}")
]
MillisecondsOrUnlimited = Annotated[
    _Whole,
    Field(ge=-1, le=_MAX_LONG),
    Allowed(f"-1 (no limit) or a whole number of milliseconds from 0 to {_MAX_LONG}"),
]
MillisecondsToAdd = Annotated[
    _Whole, Field(ge=0, le=_MAX_LONG), Allowed(f"a whole number of milliseconds from 0 to {_MAX_LONG}")
]
Wait = Annotated[_Whole, Field(ge=0, le=_MAX_INT), Allowed(f"a whole number of milliseconds from 0 to {_MAX_INT}")]
Count = Annotated[_Whole, Field(ge=1, le=_MAX_INT), Allowed(f"a whole number from 1 to {_MAX_INT}")]
CountOrNone = Annotated[_Whole, Field(ge=0, le=_MAX_INT), Allowed(f"a whole number from 0 to {_MAX_INT}")]
Percent = Annotated[_Whole, Field(ge=1, le=100), Allowed("a whole number from 1 to 100")]
Text = Annotated[str, Field(min_length=1), Allowed("a text that is not empty")]
OptionalText = Annotated[str | None, Field(min_length=1), Allowed("a text that is not empty")]
_Names = Annotated[str | None, BeforeValidator(_joined), Field(pattern=r"^[A-Za-z0-9._-]+(\s*,\s*[A-Za-z0-9._-]+)*$")]
OptionalNames = Annotated[_Names, Allowed("names separated by commas, as zone,rack")]
OptionalTopics = Annotated[_Names, Allowed("names of topics, separated by commas")]
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
OptionalUrl = Annotated[
    Annotated[str, AfterValidator(_url)] | None,
    Allowed("a URL as http://node-1.example:8000, without a path or a user"),
]
OptionalNodeName = Annotated[
    str | None, Field(pattern=rf"^{NODE_NAME}$"), Allowed("up to 200 letters, digits, '.', '_' and '-'")
]
OptionalAddress = Annotated[
    Annotated[str, AfterValidator(partial(_listen, least=1))] | None,
    Allowed("host:port with a port from 1 to 65535, as node-1:8001 or [::1]:8001"),
]
OptionalListen = Annotated[
    Annotated[str, AfterValidator(_listen)] | None,
    Allowed("host:port with a port from 0 (any free one) to 65535, as 127.0.0.1:8001 or [::1]:8001"),
]
Switch = Annotated[bool, BeforeValidator(_lower), Allowed("true or false")]
AccessLogging = Annotated[Literal["off", "slow", "on"], BeforeValidator(_lower), Allowed("off, slow or on")]
Handler = Annotated[
    Literal["fail", "skip", "dead-letter"], BeforeValidator(_lower), Allowed("fail, skip or dead-letter")
]
ProductionHandler = Annotated[Literal["fail", "skip"], BeforeValidator(_lower), Allowed("fail or skip")]
Guarantee = Annotated[
    Literal["at_least_once", "exactly_once_v2"], BeforeValidator(_lower), Allowed("at_least_once or exactly_once_v2")
]
Isolation = Annotated[IsolationLevel, BeforeValidator(_lower), Allowed("READ_UNCOMMITTED or READ_COMMITTED")]
Servers = Annotated[
    str,
    BeforeValidator(_joined),
    Field(pattern=r"^(embedded(:.+)?|[^\s,:]+:\d+(\s*,\s*[^\s,:]+:\d+)*)$"),
    AfterValidator(_servers),
    Allowed("embedded, embedded:PATH, or host:port[,host:port…] with ports from 1 to 65535"),
]
TracingExporter = Annotated[Literal["none", "otlp"], BeforeValidator(_lower), Allowed("none or otlp")]
TimeSource = Annotated[Literal["stream", "wall"], BeforeValidator(_lower), Allowed("stream or wall")]
LogFormat = Annotated[Literal["text", "json"], BeforeValidator(_lower), Allowed("text or json")]
PipelineDrivers = Annotated[Literal["each", "one"], BeforeValidator(_lower), Allowed("each or one")]
StoreFormat = Annotated[Literal["DEFAULT", "HEADERS"], BeforeValidator(_upper), Allowed("DEFAULT or HEADERS")]
Optimization = Annotated[
    Literal["none", "single.store.self.join"], BeforeValidator(_lower), Allowed("none or single.store.self.join")
]
UpgradeFrom = Annotated[Literal["v1"] | None, BeforeValidator(_lower), Allowed("v1, or nothing")]
Upgrade = Annotated[Literal["in_place", "roll_over"] | None, BeforeValidator(_lower), Allowed("in_place or roll_over")]
BytesOrUnlimited = Annotated[
    _OrUnlimited, Field(le=_MAX_LONG), Allowed(f"-1 (no limit) or a number of bytes from 1 to {_MAX_LONG}")
]
BytesPerSecond = Annotated[
    _Whole,
    Field(ge=-1, le=_MAX_LONG),
    Allowed(f"-1 (no limit), 0 (none at all) or a number of bytes per second to {_MAX_LONG}"),
]
Replication = Annotated[_OrUnlimited, Field(le=32767), Allowed("-1 (the broker's default) or a number from 1 to 32767")]
CountOrUnlimited = Annotated[
    _OrUnlimited, Field(le=_MAX_INT), Allowed(f"-1 (no limit) or a whole number from 1 to {_MAX_INT}")
]
Directory = Annotated[Path, BeforeValidator(_not_empty), Allowed("a directory")]
OptionalSharedLocation = Annotated[
    Annotated[str, AfterValidator(_location)] | None,
    BeforeValidator(_not_empty),
    Allowed("an absolute path that all nodes have mounted (without file:), or a URL such as hdfs://namenode/stateline"),
]
OptionalBackupLocation = Annotated[
    Annotated[str, AfterValidator(_location)] | None,
    BeforeValidator(_not_empty),
    Allowed("an absolute path that all nodes have mounted (without file:), or a URL such as s3://bucket/stateline"),
]
OptionalFile = Annotated[Path | None, BeforeValidator(_not_empty), Allowed("a file")]
Port = Annotated[_Whole, Field(ge=0, le=65535), Allowed("a port from 0 (any free one) to 65535")]
PassedOn = Annotated[dict[str, str], Allowed("text, numbers, true or false")]
