"""Check which of the console's scripts import which: `python tests/console_imports.py` prints each mistake.

A script imports only what stands below it: `base`, then `parts`, the folder of a place, the place, and `console.js` at
the top. The folder of a place belongs to that place alone. No two scripts import each other, by a detour either. A name
that is imported is exported there, and used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

FILES = Path(__file__).parents[1] / "service/stateline/server/console/files"
_NAMES = re.compile(r'^import {(.+)} from "(\.[^"]+)";', re.MULTILINE)
_PASSED_ON = re.compile(r"^export {(.+)}", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", re.MULTILINE)
_IMPORT = re.compile(r'^(?:import|export) (?:[{*].* from )?"([^"]+)";', re.MULTILINE)
_FLOORS = ["vendor", "base", "parts"]  # lowest first
Imports = Mapping[str, set[str]]


def imports(root: Path = FILES) -> dict[str, set[str]]:
    """Of each script the scripts that it imports, by path."""
    found = {}
    for file in sorted(root.rglob("*.js")):
        named = _IMPORT.findall(file.read_text())
        found[file.relative_to(root).as_posix()] = {
            (file.parent / name).resolve().relative_to(root.resolve()).as_posix() for name in named if name[0] == "."
        }
    return {path: names for path, names in found.items() if not path.startswith("vendor/")}


def mistakes(found: Imports) -> Iterator[str]:
    """A line for each import that is not allowed."""
    for path, names in found.items():
        for name in sorted(names):
            if not _is_allowed(PurePosixPath(path), PurePosixPath(name)):
                yield f"{path} imports {name}: move what both need to base or parts."
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        yield f"These import each other: {' <- '.join(error.args[1])}."


def wrong_names(root: Path = FILES) -> Iterator[str]:
    """A line for each imported name that is not exported, or not used. The server makes `base/kinds.js` itself."""
    for path in imports(root):
        text = (root / path).read_text()
        for listed, name in _NAMES.findall(text):
            file = (root / path).parent / name
            exported = _exported(file) if file.exists() and "vendor/" not in name else None
            for each in listed.split(","):
                there, _, here = each.strip().partition(" as ")
                if exported is not None and there not in exported:
                    yield f"{path} imports {there}, which {name} does not export."
                if len(re.findall(rf"\b{here or there}\b", text)) < 2:
                    yield f"{path} imports {here or there} and does not use it."


def _exported(file: Path) -> set[str]:
    text = file.read_text()
    passed_on = (each.strip() for listed in _PASSED_ON.findall(text) for each in listed.split(","))
    return {*_EXPORT.findall(text), *passed_on}


def _is_allowed(path: PurePosixPath, name: PurePosixPath) -> bool:
    floor, below = path.parts[0], name.parts[0]
    if below in _FLOORS:
        return floor not in _FLOORS or _FLOORS.index(below) <= _FLOORS.index(floor)
    if floor == "console.js":
        return len(name.parts) == 2  # a place, and not what belongs to it
    own = path.parts[1].removesuffix(".js")
    return floor == "places" and len(name.parts) > 2 and name.parts[1] == own


if __name__ == "__main__":
    found = [*mistakes(imports()), *wrong_names()]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
