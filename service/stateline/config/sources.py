"""Read each source of settings as pairs of a dotted name and a value. It checks no values."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from stateline_store.errors import ConfigurationError

PREFIX = "STATELINE_"

# Variables that begin with STATELINE_ and are no settings: the command line's own, those of tests and
# benchmarks, and what Kubernetes gives every container for a Service whose name begins with "stateline".
_NO_SETTING = re.compile(
    r"(TRACEBACK|(TEST|BENCH|CRASH)_.*)=.*"
    r"|((.*_)?SERVICE_(HOST|PORT.*)|(.*_)?PORT_\d+_.*)=.*"
    r"|(.*_)?PORT=\w+://.*",
    re.DOTALL,
)


class SourcedValue(NamedTuple):
    """A value and its origin."""

    value: object
    origin: str


Source = Iterator[tuple[str, SourcedValue]]


def from_tree(tree: Mapping[str, object], origin: str, above: str = "") -> Source:
    """Parsed TOML. Tables nest; a quoted key such as ``"commit.interval.ms"`` is a dotted name already."""
    for key, value in tree.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from from_tree(value, origin, f"{name}.")
        else:
            yield name, SourcedValue(value, origin)


def from_environment(environment: Mapping[str, str], known: Container[str]) -> Source:
    """``STATELINE_COMMIT_INTERVAL_MS`` is commit.interval.ms. Unknown names are yielded too, as likely typos."""
    for variable, value in environment.items():
        rest = variable.removeprefix(PREFIX)
        name = rest.lower().replace("_", ".")
        if rest != variable and (name in known or not _NO_SETTING.fullmatch(f"{rest}={value}")):
            yield name, SourcedValue(value, f"environment, {variable}")


def from_overrides(overrides: Sequence[str]) -> Source:
    """``name=value`` texts. Raises `ConfigurationError` for one without ``=``."""
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {text}: write it as NAME=VALUE, as in commit.interval.ms=100.")
        yield name.strip(), SourcedValue(value.strip(), "--set")
