"""`RunPlan`: the processes that `stateline run` and `serve` start, written by a process that has loaded the code.

The supervisor has loaded the application once, and cannot load changed modules again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from stateline.config.settings import Config
from stateline.processes.child import Child
from stateline_store.errors import ConfigurationError

# Settings of the supervisor itself: its lock, its sockets, its log format.
_FIXED = ("application.id", "state.dir", "server.host", "server.port", "node.name", "node.peer.listen", "log.format")
# Members of a child that the application decides. The supervisor decides the rest.
_TOLD = ("name", "command", "stop_order", "fails_alone", "says_ready", "quits_by", "stop_timeout_s")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """`files` are those that the application and its settings were loaded from. `fixed` are settings that only a start
    of the supervisor changes."""

    children: Sequence[Child]
    files: Sequence[Path]
    fixed: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it for `read` of the same version."""
        children = [{name: getattr(child, name) for name in _TOLD} for child in self.children]
        told = {"children": children, "files": list(map(str, self.files)), "fixed": self.fixed}
        path.write_bytes(orjson.dumps(told))

    @staticmethod
    def read(path: Path, fixed: Mapping[str, str], listens: Callable[[Child], Child]) -> RunPlan:
        """Read the file and make each child listen. Raises `ConfigurationError` if a setting differs from a `fixed`
        one."""
        told = orjson.loads(path.read_bytes())
        refuse_others(told["fixed"], fixed)
        children = [Child(**{**child, "quits_by": signal.Signals(child["quits_by"])}) for child in told["children"]]
        return RunPlan([listens(child) for child in children], [Path(file) for file in told["files"]], told["fixed"])


def fixed_settings(config: Config, *also: str) -> dict[str, str]:
    """The settings that a running supervisor cannot change, and `also` these, as text."""
    return {name: str(getattr(config, name.replace(".", "_"))) for name in (*_FIXED, *also)}


def refuse_others(found: Mapping[str, str], fixed: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if one of these settings differs from the fixed one."""
    others = [f"{name} = {found[name]} instead of {was}" for name, was in fixed.items() if found[name] != was]
    if others:
        raise ConfigurationError(f"{', '.join(others)}: that needs a restart.")


def fixed_of_serve(config: Config) -> dict[str, str]:
    """The same for `stateline serve`, which shares its connections among server.processes."""
    return fixed_settings(config, "server.processes")
