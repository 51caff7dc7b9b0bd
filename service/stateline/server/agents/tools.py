"""`TOOLS`: what an agent may call. Each tool is one request of the HTTP contract, or two of them.

Parameters have the names and descriptions of HTTP (`contract.parameters`, `stateline.query.kinds`). So a new parameter
of a query is also one of its tool. Pure: no sockets, no clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from stateline.query.kinds import BY_WORD
from stateline.server.contract.arguments import Arguments
from stateline.server.contract.parameters import PARAMETERS
from stateline.server.contract.written_arguments import Argument
from stateline.server.nodes.http_over_link import HttpAnswer
from stateline_store import InvalidArgumentError

DEFAULT_LIMIT, MOST_ROWS = 20, 1000
"""Entries or rows of an answer: if the agent names no limit, and at most."""
MOST_BYTES = 256 * 1024
"""The largest answer."""
INSTRUCTIONS = (
    "These tools read the state of a stream application: its stores, as they are now. They change nothing. Begin with "
    "list_stores: it names the stores, their kinds, and the types of keys and values. Write a key as JSON of the "
    "store's key type. Every answer with rows has `isolation_level` and `position`. read_committed: the rows are "
    "final. read_uncommitted: they may still be rolled back. `position` says which input the rows include, as topic → "
    "partition → offset. Pass it as `position_bound` to read this state or a later one. A failed call has a `reason`, "
    "and a `detail` that says what to do."
)
_TERMS = ("isolation_level", "position_bound", "wait_ms")
_PLAIN = ("type", "enum", "minimum", "items", "default")  # every model takes these members of a JSON schema
_OWN: Mapping[str, dict[str, Any]] = {
    "store": {"type": "string", "description": "The name of the store, as in list_stores."},
    "limit": {
        "type": "integer",
        "description": "Entries or rows, at most.",
        "minimum": 1,
        "maximum": MOST_ROWS,
        "default": DEFAULT_LIMIT,
    },
}

Answers = Sequence[HttpAnswer]


class AskedRequest(NamedTuple):
    """One request of the HTTP contract: a GET, or with a body a POST."""

    path: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and the requests that answer it. `shown` makes the text of its result from their answers and the limit.
    `members` are further members of a body; None is a GET."""

    name: str
    description: str
    paths: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    members: Mapping[str, str] | None = None
    shown: Callable[[Answers, int], bytes] = lambda answers, _: answers[0].body

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON schema of its arguments."""
        properties = {name: _schema(name) for name in self.parameters}
        return {"type": "object", "properties": properties, "required": [*self.required], "additionalProperties": False}

    def requests(self, given: Mapping[str, Any], most: int) -> tuple[list[AskedRequest], int]:
        """Return what to ask, and how many rows to show. `most` is server.limit.max.

        Raises `InvalidArgumentError` for a missing argument, and for one that the tool does not have.
        """
        arguments = Arguments({name: Argument(value, textual=False) for name, value in given.items()})
        arguments.refuse_others(self.parameters)
        if missing := [name for name in self.required if name not in arguments]:
            raise InvalidArgumentError(f"{missing[0]} is missing: {_schema(missing[0])['description']}")
        store, most = quote(arguments.text("store") or "", safe=""), min(MOST_ROWS, most)
        limit = arguments.integer("limit", min(DEFAULT_LIMIT, most), 1, most, "for agents")
        body = b""
        if self.members is not None:
            members = {name: value for name, value in given.items() if name not in ("store", "limit")}
            pages = {"limit": limit} if "cursor" in self.parameters else {}
            # Compact, as keys of type json mostly are: they are looked up byte for byte.
            text = json.dumps({**members, **self.members, **pages}, ensure_ascii=False, separators=(",", ":"))
            body = text.encode("utf-8", "surrogatepass")
        return [AskedRequest(path.format(store=store), body) for path in self.paths], limit


def _schema(name: str) -> dict[str, Any]:
    if name in _OWN:
        return _OWN[name]
    schema, description = PARAMETERS[name]
    plain = {member: schema[member] for member in _PLAIN if member in schema}
    return plain | {"description": f"{description} {schema.get('description', '')}".rstrip()}


def _stores(answers: Answers, _: int) -> bytes:
    members = ("store", "kind", "key_type", "value_type", "default_isolation_level", "not_ready", "stopped")
    stores = orjson.loads(answers[0].body)["stores"]
    return orjson.dumps({"stores": [{name: each[name] for name in members if name in each} for each in stores]})


def _store(answers: Answers, _: int) -> bytes:
    """Return the store, how many partitions are in which state, and its Position, or why it has none now."""
    store, at = (orjson.loads(each.body) for each in answers)
    states = Counter(str(each["state"]) for each in store["partitions"].values())
    standing = {name: at[name] for name in ("isolation_level", "position", "reason", "detail") if name in at}
    return orjson.dumps(store | {"partitions": states} | standing)


def _rows(answers: Answers, limit: int) -> bytes:
    """Return the first rows of a result, byte for byte, and what they are of."""
    lines, headers = answers[0].body.splitlines(), answers[0].headers
    told = {
        "isolation_level": headers["stateline-isolation-level"],
        "position": orjson.Fragment(headers["stateline-position"]),
        "cut": orjson.Fragment(headers["stateline-cut"]),
        "rows": [orjson.Fragment(line) for line in lines[:limit]],
        "more_rows": max(0, len(lines) - limit),
    }
    return orjson.dumps(told)


def _query(name: str, word: str, description: str, *required: str) -> Tool:
    parameters = ("store", *BY_WORD[word].parameters, *_TERMS)
    return Tool(name, description, ("/v1/stores/{store}/query",), parameters, ("store", *required), {"type": word})


_PAGED = (
    " The answer has `entries`, `isolation_level`, `position`, and a `cursor` if there are more entries. For the next "
    "page of the same state, pass store, cursor and limit alone."
)
SQL = Tool(
    "sql",
    "Run one SELECT in DuckDB's SQL over the stores. A table is a store, with columns key, value and timestamp, and of "
    "windows and sessions start and end. SHOW TABLES and DESCRIBE work. value->>'name' is a member of a JSON value. "
    "Filter and aggregate in the statement: at most `limit` rows are shown, and `more_rows` counts the rest. The "
    "answer has `rows`, `isolation_level` (read_committed by default), `position`, and `cut`: whether the rows are of "
    "one moment.",
    ("/v1/sql",),
    ("sql", "params", "limit", "as_of", *_TERMS),
    ("sql",),
    {"format": "ndjson"},
    _rows,
)
TOOLS = (
    Tool(
        "list_stores",
        "List the stores: kind, key and value type, and the isolation level of reads that name none. It reads no rows, "
        "so it has no Position: describe_store has it.",
        ("/v1/stores",),
        shown=_stores,
    ),
    Tool(
        "describe_store",
        "Describe one store: kind, types, columns, retention, how many partitions are in which state, and its "
        "`position` at `isolation_level`.",
        ("/v1/stores/{store}", "/v1/stores/{store}/position?allow_partial=true"),
        ("store",),
        ("store",),
        shown=_store,
    ),
    _query(
        "get",
        "key",
        "Get the value of one key of a key-value or versioned store. With as_of, the version of a versioned store at "
        "that time. The answer has `found`, `value`, `timestamp`, `isolation_level` and `position`.",
        "key",
    ),
    _query(
        "range",
        "range",
        "Read entries of a key-value or versioned store in the order of keys: from lower to upper, with a prefix, or "
        "all. With as_of, the versions of a versioned store at that time." + _PAGED,
    ),
    _query("windows", "windows", "Read the windows of one key, or of all keys, of a window store." + _PAGED),
    _query("sessions", "sessions", "Read the sessions of one key, or of all keys, of a session store." + _PAGED),
    _query(
        "versions",
        "versions",
        "Read the history of one key of a versioned store, newest first. `key` is needed without a cursor. For the "
        "version at one time, use get with as_of." + _PAGED,
    ),
    SQL,
    Tool(
        "topology",
        "Show how data flows: subtopologies with topics, processors and stores, and pipelines. It reads no rows, so it "
        "has no Position and no isolation level.",
        ("/v1/topology",),
    ),
    Tool(
        "health",
        "Say whether every store can be queried. If not, the call fails with NOT_READY and the reasons. It reads no "
        "rows, so it has no Position and no isolation level.",
        ("/readyz",),
    ),
)
