"""Write the parts of the documentation that the code knows, and the blocking client: `python docs/generate.py`.

A page has such a part between `<!-- generated: NAME -->` and `<!-- end -->`. The text around it is written by hand.
`--check` writes nothing. It names the stale pages, and exits with 1 if there are any.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from sync_client import blocking_modules
from typer.main import get_command

from stateline.cli.main import cli
from stateline.client.failures import BY_REASON
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.problem_kinds import PROBLEMS
from stateline.query.kinds import KINDS
from stateline.query.query_kind import PAGING, QueryKind
from stateline.server.certificates import Certificates
from stateline.server.contract.openapi import Operation
from stateline.server.contract.parameters import COMMON, PARAMETERS
from stateline.server.contract.problems import problem_response
from stateline.server.main import OPERATIONS
from stateline.server.queries.operations import STORE
from stateline.server.state.pipeline_states import PipelineStates
from stateline.server.telemetry.metrics import BackupCollector, Load, WorkerLives
from stateline.server.telemetry.node_metrics import CertificateCollector, LinkCollector, NodeCounts
from stateline.server.telemetry.pipelines import PipelineCollector
from stateline.server.telemetry.request_counts import RequestCounts
from stateline.server.telemetry.store_metrics import StoreCollector
from stateline.server.telemetry.workers_metrics import FiguresReader, WorkerCollector
from stateline_store.layout import STORE_KINDS

DOCS = Path(__file__).parent
# The generated parts of a page: name, text.
_PART = re.compile(r"(?<=<!-- generated: )([a-z_ ]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    first, *others = (re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(cells)} |") for cells in lines)
    return "\n".join([first, f"|{'---|' * len(head)}", *others])


def _code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


# ---- Settings

_GROUPS = {
    "server": ("server.",),
    "nodes": ("node.", "num.standby.", "max.warmup.", "acceptable.recovery.", "rack.aware."),
    "pipelines": ("pipeline.", "spark."),
    "processes": ("num.workers", "worker.", "log.", "tracing."),
}


def settings(group: str) -> str:
    """The settings whose names begin as the group says. `application` has the others."""
    others = tuple(each for names in _GROUPS.values() for each in names)
    rows = []
    for row in load_config("x").describe():
        if row.name.startswith(_GROUPS[group]) if group in _GROUPS else not row.name.startswith(others):
            default = f"`{row.value}`" if row.origin == "default" and row.value else "none"
            about = re.sub(r"<[^>]+>(/<[^>]+>)*", lambda found: f"`{found[0]}`", row.description)
            rows.append((f"`{row.name}`", default, row.allowed, about))
    return _table(("setting", "default", "allowed", "meaning"), rows)


# ---- Metrics


class _Family(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


class _Seen(CollectorRegistry):
    """Keeps the metrics that are registered, with their labels."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[tuple[Any, Sequence[str]]]()

    def register(self, collector: Any) -> None:
        if isinstance(collector, MetricWrapperBase):
            self.found += [(each, collector._labelnames) for each in collector.describe()]


@cache
def _families() -> list[_Family]:
    """Every metric of a server, from collectors of an application that has nothing."""
    seen, nowhere = _Seen(), Path("/nonexistent")
    for counted in (RequestCounts, Load, NodeCounts):
        counted(seen)
    found = seen.found
    states = PipelineStates(App("x").topology(), nowhere)
    for collector in (
        CertificateCollector(Certificates(load_config("x"), None)),
        StoreCollector(),
        WorkerLives(nowhere),
        BackupCollector(nowhere),
        WorkerCollector(FiguresReader(nowhere)),
        LinkCollector(),
        PipelineCollector(states),
    ):
        found += [(family, getattr(family, "_labelnames", ())) for family in collector.collect()]
    return [
        _Family(f.name + "_total" * (f.type == "counter"), f.type, tuple(labels), f.documentation)
        for f, labels in found
    ]


def _group_of(metric: _Family) -> str:
    for word in ("node", "pipeline", "rocksdb", "backup"):
        if metric.name.startswith(f"stateline_{word}_"):
            return word
    if metric.labels[-2:] == ("task", "store"):
        return "store"
    return "worker" if "worker" in metric.labels or metric.name == "stateline_workers" else "server"


def metrics(group: str) -> str:
    """The metrics of a group."""
    rows = [
        (f"`{each.name}`", each.kind, _code(each.labels), each.about)
        for each in _families()
        if _group_of(each) == group
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


# ---- Commands


def _commands() -> Iterator[tuple[str, Any]]:
    for name, command in getattr(get_command(cli), "commands", {}).items():
        yield from (
            (f"{name} {inner}".strip(), each) for inner, each in getattr(command, "commands", {"": command}).items()
        )


_COMMON_OPTIONS = ("--set", "--config", "--json")


def command(name: str) -> str:
    """The help of a command, its arguments and options."""
    found = dict(_commands())[name]
    about, example = inspect.cleandoc(found.help).split("Example: ")
    paragraphs = [" ".join(each.split()) for each in about.strip().split("\n\n")]
    shown = [p for p in found.params if not p.hidden]
    arguments = "".join(_usage(p) for p in shown if p.param_type_name == "argument")
    usage = f"    stateline {name}{arguments}" + " [OPTIONS]" * any(p.param_type_name == "option" for p in shown)
    own = [p for p in shown if p.opts[0] not in (*_COMMON_OPTIONS, "target")]
    common = [option for option in _COMMON_OPTIONS if any(option in p.opts for p in shown)]
    text = "\n\n".join([usage, *(re.sub(r"(?<![\w`-])--[a-z][a-z-]+", r"`\g<0>`", each) for each in paragraphs)])
    if own:
        text += "\n\n" + _table(("option", "default", "meaning"), map(_option, own))
    if common:
        text += f"\n\nIt also takes {_code(common)}."
    return f"{text}\n\n```console\n$ {' '.join(example.split())}\n```"


def _usage(argument: Any) -> str:
    text = argument.metavar + "…" * (argument.nargs == -1)
    return f" {text}" if argument.required else f" [{text}]"


def _option(parameter: Any) -> tuple[str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    words = [parameter.opts[0]] * (not is_argument) + [parameter.metavar] * bool(parameter.metavar)
    default = parameter.show_default if isinstance(parameter.show_default, str) else ""
    if not default and parameter.default not in (None, False):
        default = f"`{parameter.default:g}`" if isinstance(parameter.default, float) else f"`{parameter.default}`"
    return f"`{' '.join(words)}`", default, parameter.help + _bounds(parameter.min, parameter.max)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return "" if least in (None, 0) else f" At least {least:g}."
    return f" From {least:g} to {most}."


# ---- Requests

_BELOW = {"changes": "/v1/stores/{store}/changes", "snapshots": "/v1/snapshots"}


def requests(group: str) -> str:
    """The requests of a group."""
    return _table(
        ("request", "answer", "parameters", "failures"),
        [_request(operation) for operation in OPERATIONS if _kind_of(operation) == group],
    )


def _kind_of(operation: Operation) -> str:
    for group, path in _BELOW.items():
        if operation.path.startswith(path):
            return group
    return "service" if operation.result is None and operation.body is None else "queries"


def _request(operation: Operation) -> tuple[str, str, str, str]:
    common = COMMON if _kind_of(operation) == "queries" else ()
    parameters = _code(name.rpartition(".")[2] for name in operation.parameters if name not in common)
    if operation.members:
        parameters = f"in the body: {_code(name.rpartition('.')[2] for name in operation.members)}"
    if operation.body is not None:
        parameters = "in the body: `type`, and the parameters of the query"
    return (
        f"`{operation.method.upper()} {operation.path}`",
        operation.summary,
        parameters,
        ", ".join(map(str, sorted(operation.problems))),
    )


_OWN_GROUPS = {"changes": "change feeds", "offsets": "ends of changes", "rows": "changes between two offsets"}


def parameters(group: str) -> str:
    """The parameters of every query, or the other ones."""
    rows = []
    for full, parameter in PARAMETERS.items():
        if (full in COMMON) is (group == "common"):
            place, _, name = full.rpartition(".")
            where = f" of {_OWN_GROUPS[place]}" if place else ""
            default = parameter.schema.get("default")
            text = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
            rows.append((f"`{name}`{where}", _values(parameter.schema), text, parameter.description))
    return _table(("parameter", "values", "default", "meaning"), rows)


def _values(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return _code(schema["enum"])
    if "items" in schema:
        return "numbers" if schema["items"].get("type") == "integer" else "an array"
    match schema.get("type"):
        case "integer":
            return f"a number from {schema['minimum']}"
        case "boolean":
            return _code(("true", "false"))
        case "object":
            return "a JSON object"
        case "string":
            return "a text"
        case ["integer", "string"]:
            return "a time"
        case ["string", "object"]:
            return "a text or a Position"
    return "a key" if "not" in schema else "JSON"


def queries() -> str:
    """The queries by kind of store: the request and the members of the answer of each."""
    return _table(
        ("query", "stores", "request", "its own members in the answer"),
        [_query(kind, path, of_key) for kind in KINDS for path, _, of_key in kind.paths() or (("/query", "", False),)],
    )


def _query(kind: QueryKind, path: str, of_key: bool) -> tuple[str, str, str, str]:
    in_body = path == "/query"
    able = [each for each in STORE_KINDS if kind.stores(each, of_key=None if in_body else of_key)]
    stores = ", ".join(each.replace("_", "-") for each in able) or "stores with a method `query`"
    members = kind.result
    if "entries" in members:
        entry = members["entries"]["items"]["properties"]
        # The entries of one key have no key of their own.
        shown = f"`entries` of {_code(each for each in entry if not (of_key and each.startswith('key')))}"
        shown += "; `cursor`" * kind.is_scan
    else:
        shown = _code(members)
    own = "".join(f"{name}=&" for name in kind.url_parameters if name not in ("order", *PAGING))[:-1]
    request = f"`POST {STORE}{path}`" if in_body else f"`GET {STORE}{path}{'?' * bool(own)}{own}`"
    return f"`{kind.word}`", "every kind" if len(able) == len(STORE_KINDS) else stores, request, shown


# ---- Errors


def reasons() -> str:
    """Every reason of a failed request."""
    found: dict[str, list[str]] = {}
    for kind, problem in PROBLEMS.items():
        cells = [str(problem.status), problem.retried.value, _retry_after(kind(""))]
        found.setdefault(problem.reason, cells).append(problem.when)
    rows = [
        (f"[`{reason}`](#{reason.lower()})", status, " ".join(when), f"`{BY_REASON[reason].__name__}`", retried, retry)
        for reason, (status, retried, retry, *when) in found.items()
    ]
    return _table(("reason", "status", "meaning", "in Python", "retried by the client", "`Retry-After`"), rows)


def _retry_after(error: Exception) -> str:
    seconds = problem_response(error).headers.get("Retry-After")
    return "" if seconds is None else f"{seconds} s"


def _parts() -> dict[str, Callable[[], str]]:
    """Name of a part → how it is written."""
    groups: list[tuple[str, Callable[[str], str], Iterable[str]]] = [
        ("settings", settings, ("application", *_GROUPS)),
        ("metrics", metrics, dict.fromkeys(map(_group_of, _families()))),
        ("command", command, dict(_commands())),
        ("requests", requests, dict.fromkeys(map(_kind_of, OPERATIONS))),
        ("parameters", parameters, ("common", "other")),
    ]
    return {f"{kind} {name}": partial(write, name) for kind, write, names in groups for name in names} | {
        "reasons": reasons,
        "queries": queries,
    }


def main(arguments: Sequence[str]) -> int:
    """Write the stale files, or only name them (`--check`). Return 1 if the check finds any, or a part is nowhere."""
    parts, stale, used = _parts(), list[Path](), set[str]()
    new = dict(blocking_modules())
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        used |= {found[0] for found in _PART.findall(text)}
        new[path] = _PART.sub(lambda found: f"{found[1]}{found[2]}\n{parts[found[1]]()}\n\n", text)
    for path, text in new.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(DOCS.parent))
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if missing := parts.keys() - used:
        print(f"No page has these parts: {', '.join(sorted(missing))}. Add `<!-- generated: … -->`.", file=sys.stderr)
    if stale and "--check" in arguments:
        print(f"Stale: {', '.join(map(str, stale))}. Run `python docs/generate.py`.", file=sys.stderr)
    return 1 if missing or (stale and "--check" in arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
