"""The public names of Stateline and how they are called, and what of an earlier version no longer works.

`python -m golden.public_api`, with `tests` on the path, writes those of this version to
`tests/golden/<version>.api.json`:

    {"stateline.App.table": ["self", "topic", "*", "key=", …], "stateline.testing.Record": null, …}

A list has the parameters in their order, `=` behind those with a default, and `*` before those that have to be named.
Null is a name that is not called.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from stateline import __version__

FILES = Path(__file__).parent
MODULES = (
    "stateline", "stateline.serdes", "stateline.stores", "stateline.client", "stateline.testing", "stateline.spark",
    "stateline.embedded", "stateline_store.errors", "stateline.dsl.streams", "stateline.dsl.grouped_tables",
    "stateline.dsl.cogrouped",
)  # fmt: skip
_NAMED, _REST, _MORE = "*", "*…", "**…"

Called: TypeAlias = list[str] | None
Api: TypeAlias = dict[str, Called]


def public_api() -> Api:
    return dict(sorted(item for module in MODULES for item in _of_module(module)))


def _of_module(name: str) -> Iterator[tuple[str, Called]]:
    module = importlib.import_module(name)
    own = [each for each in vars(module) if getattr(vars(module)[each], "__module__", None) == name]
    for each in getattr(module, "__all__", own):
        if not each.startswith("_"):
            yield from _of(f"{name}.{each}", getattr(module, each))


def _of(name: str, value: Any) -> Iterator[tuple[str, Called]]:
    yield name, _parameters(value) if callable(value) else None
    if inspect.isclass(value) and value.__module__.startswith("stateline"):
        for member in dir(value):
            found = inspect.getattr_static(value, member)
            if not member.startswith("_"):
                yield f"{name}.{member}", _parameters(getattr(value, member)) if _is_method(found) else None


def _is_method(found: object) -> bool:
    return inspect.isfunction(found) or isinstance(found, classmethod | staticmethod)


def _parameters(value: Any) -> Called:
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # of a class in C, as exceptions are
        return None
    found: list[str] = []
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not {_NAMED, _REST} & {*found}:
            found.append(_NAMED)
        rest: dict[Any, str] = {each.VAR_POSITIONAL: _REST, each.VAR_KEYWORD: _MORE}
        found.append(rest.get(each.kind, each.name + "=" * (each.default is not each.empty)))
    return found


def broken(before: Api, now: Api) -> list[str]:
    """What worked `before` and does not work `now`."""
    return [
        f"{name}: {why}"
        for name, called in before.items()
        for why in (["is gone"] if name not in now else _broken_calls(called, now[name]))
    ]


def _broken_calls(before: Called, now: Called) -> Iterator[str]:
    if before is None or now is None:
        if before is not None:
            yield "cannot be called"
        return
    (first, named), (first_now, named_now) = _split(before), _split(now)
    known = {each.rstrip("="): each for each in (*first_now, *named_now)}
    for at, each in enumerate(first):
        name = each.rstrip("=")
        if name not in known and _MORE not in now:
            yield f"does not take {name}"
        elif (at >= len(first_now) or first_now[at].rstrip("=") != name) and _REST not in now:
            yield f"takes {name} at another place"
    for each in named:
        if each.rstrip("=") not in known and _MORE not in now:
            yield f"does not take {each.rstrip('=')}"
    taken = {each.rstrip("="): each for each in (*first, *named)}
    for name, each in known.items():
        if not each.endswith("=") and not name.startswith("*") and taken.get(name, "=").endswith("="):
            yield f"needs {name}"


def _split(called: list[str]) -> tuple[list[str], list[str]]:
    """The parameters that need no name, and those that do."""
    marks = [at for at, each in enumerate(called) if each in (_NAMED, _REST)]
    end = marks[0] if marks else len(called)
    plain = [each for each in called[:end] if each != _MORE]
    return plain, [each for each in called[end:] if each not in (_NAMED, _REST, _MORE)]


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(called)}" for name, called in public_api().items()]
    (FILES / f"{__version__}.api.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
