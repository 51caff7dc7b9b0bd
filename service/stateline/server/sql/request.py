"""`SqlRequest`: what a request to `/v1/sql` asks, from its body or its query string."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from stateline.config.settings import Config
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.formats import ARROW, CSV, JSON, NDJSON, Shape, wanted_format
from stateline.server.contract.written_arguments import Argument, parsed_json
from stateline.server.routing.bounds import PositionBounds
from stateline_store import InvalidArgumentError, IsolationLevel, PositionBound

PARAMETERS = (
    "sql", "params", "isolation_level", "position_bound", "store_bounds", "wait_ms", "as_of", "timeout_ms",
    "max_age_ms", "max_staleness_ms", "require_active", "format", "details",
)  # fmt: skip
DEFAULT_MAX_AGE_MS = 1_000
_LEVELS = tuple(level.value for level in IsolationLevel)


@dataclass(frozen=True, slots=True)
class SqlRequest:
    """One statement with its terms. Times are milliseconds."""

    sql: str
    params: Sequence[Any] | Mapping[str, Any]
    level: IsolationLevel
    bound: PositionBound
    store_bounds: Mapping[str, PositionBound] | None
    """Bounds of stores, also of those that the statement does not read. If given, the answer names its own."""
    wait_ms: int
    as_of: int | None
    timeout_ms: int
    max_age_ms: int
    max_staleness_ms: int | None
    require_active: bool
    media_type: str
    details: bool
    """Whether a JSON answer has the envelope."""

    @property
    def has_bound(self) -> bool:
        return bool(self.bound.position or self.store_bounds)

    @property
    def text(self) -> str:
        """Return the statement and its parameters. Its errors may quote them."""
        return f"{self.sql}\n{json.dumps(self.params, ensure_ascii=False)}"

    @property
    def cut_age_ms(self) -> int:
        """How old a shared cut may be. It is of owners, so that its age is all that its rows are stale."""
        return self.max_age_ms if self.max_staleness_ms is None else min(self.max_age_ms, self.max_staleness_ms)

    def key(self, *more: Any) -> bytes:
        """Return what equal requests have in common, whatever their format and `max_age_ms`. `more` is JSON, too."""
        bounds = None
        if self.store_bounds is not None:
            bounds = {name: each.position.to_json() for name, each in self.store_bounds.items()}
        told = [self.sql, self.params, self.level, self.bound.position.to_json(), bounds, self.as_of,
                self.max_staleness_ms, self.require_active, self.wait_ms, self.timeout_ms, more]  # fmt: skip
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).digest()


def read_sql(request: Request, given: Mapping[str, Argument], config: Config, bounds: PositionBounds) -> SqlRequest:
    """Return what these arguments ask. Raises `InvalidArgumentError`, also for the format."""
    given = dict(given)
    if "q" in given:  # of GET, short for caches and bookmarks
        if "sql" in given:
            raise InvalidArgumentError("q and sql are both given, and mean the same: give one of them.")
        given["sql"] = given.pop("q")
    arguments = Arguments(given)
    arguments.refuse_others(PARAMETERS)
    sql = arguments.text("sql")
    if sql is None:
        raise InvalidArgumentError("sql is missing: give one SELECT (`sql` in a body, `q` in a URL).")
    level = arguments.choice("isolation_level", IsolationLevel.READ_COMMITTED.value, _LEVELS)
    staleness_ms = arguments.integer("max_staleness_ms", -1, 0, 2**53, "2^53")
    longest_ms = config.sql_timeout_ms
    return SqlRequest(
        sql,
        _params(given.get("params")),
        IsolationLevel(level),
        arguments.bound(bounds.most_of_all),
        arguments.bounds("store_bounds", bounds.most_of_all),
        arguments.integer("wait_ms", 0, 0, config.server_wait_max_ms, "server.wait.max.ms"),
        arguments.time("as_of"),
        arguments.integer("timeout_ms", longest_ms, min(100, longest_ms), longest_ms, "sql.timeout.ms"),
        arguments.integer("max_age_ms", DEFAULT_MAX_AGE_MS, 0, 3_600_000, "an hour"),
        None if staleness_ms < 0 else staleness_ms,
        arguments.boolean("require_active"),
        wanted_format(request, Shape.read(arguments), JSON, NDJSON, CSV, ARROW),
        arguments.choice("details", "none", ("all", "none")) == "all",
    )


def _params(argument: Argument | None) -> Sequence[Any] | Mapping[str, Any]:
    if argument is None or argument.value is None:
        return ()
    value = parsed_json("params", argument.value) if argument.textual else argument.value
    if not isinstance(value, list | dict):
        raise InvalidArgumentError(f"params={argument.shown()}: an array for $1, $2 …, or an object for $name.")
    return value
