"""Select the test files that reach a changed file: `python tests/changed.py [BASE]` prints them, one a line.

Changed is what differs from BASE (default: the merge base with `main`), files that are not committed included. A test
file reaches a file if a chain of names leads there: from what the test uses, to what that function or class uses, and
so on. Fixtures count for the tests that ask for them, commands (`"worker"`) and modules (`"support.apps.sick_app:app"`)
for those that have them as a string. A file that is no Python counts as the modules that name it, or else as those
beside or above it. Tests of the repository's own files (`tests/test_*.py`) always run. A change of `pyproject.toml`,
`requirements.lock` or the `Makefile` selects every test.

`--share COMMITS` prints instead what share of the test files each of the last COMMITS commits would have selected.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
_SOURCES = ("service", "store", "examples/flights", "tests")  # where each import path begins
_EVERYTHING = {"pyproject.toml", "requirements.lock", "Makefile"}
# They name all that they could start: who uses them names the command.
_STARTERS = ("stateline.cli.main", "support.processes.forked")
_COMMANDS = "stateline.cli."
_MODULE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")


class Part:
    """A function or class of a module, or the rest of the module: the names that its text uses."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        self.names: set[str] = set()  # with dots: of `a.b.c` all of "a", "a.b" and "a.b.c"
        self.texts: set[str] = set()
        self.imports: dict[str, str] = {}  # those within functions, too
        for node in nodes:
            for each in ast.walk(node):
                self._take(each)

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                self.names.add(name)
            case ast.Attribute():
                self.names.add(ast.unparse(node))
            case ast.Constant(value=str(text)) if len(text) < 200:
                self.texts.add(text)
            case ast.Import(names=names):
                self.imports |= {alias.asname or alias.name: alias.name for alias in names}
            case ast.ImportFrom(names=names, module=of):
                self.imports |= {alias.asname or alias.name: f"{of}.{alias.name}" for alias in names}


class Module:
    """A Python file in its parts. The part "" is what belongs to none of its functions and classes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.root = next(root for root in _SOURCES if path.startswith(f"{root}/"))
        self.name = path[len(self.root) + 1 : -3].replace("/", ".").removesuffix(".__init__")
        tree = ast.parse((ROOT / path).read_text())
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        self.parts = {node.name: Part([node]) for node in tree.body if isinstance(node, defined)}
        self.parts[""] = Part(node for node in tree.body if not isinstance(node, defined))

    def uses(self, part: str) -> Iterator[str]:
        """The full names that a part uses, those of its own module among them."""
        used, rest = self.parts[part], self.parts[""]
        imports = rest.imports | used.imports
        for name in used.names:
            first, _, more = name.partition(".")
            if first in imports:
                yield f"{imports[first]}.{more}".rstrip(".")
            elif first in self.parts:
                yield f"{self.name}.{first}"
        for text in used.texts:
            yield from _MODULE.findall(text.replace(":", "."))
        if part:
            yield f"{self.name}."
        else:  # imported for what its import does
            yield from (full for name, full in imports.items() if not name.startswith("_") and self._unused(name))

    def _unused(self, name: str) -> bool:
        return not any(name in part.names for part in self.parts.values())


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def is_test(path: str) -> bool:
    return PurePosixPath(path).name.startswith("test_")


class Users:
    """Which part of which module uses which."""

    def __init__(self, paths: Iterable[str]) -> None:
        below = tuple(f"{root}/" for root in _SOURCES)
        modules = [Module(path) for path in paths if path.startswith(below) and (ROOT / path).exists()]
        self._modules = {module.name: module for module in modules}
        self._by_path = {module.path: module for module in modules}
        self._users: dict[str, set[str]] = defaultdict(set)
        for module in modules:
            for part in module.parts if module.name not in _STARTERS else ():
                for name in module.uses(part):
                    for home in self._homes(name):
                        self._users[home].add(f"{module.name}.{part}")
        self._ask_for_functions()
        self.tests = {path for path in self._by_path if is_test(path)}

    def _homes(self, name: str) -> Iterator[str]:
        """The part that has this name, after those that packages pass on."""
        for _ in range(4):
            module, _, rest = name, "", ""
            while module not in self._modules and module:
                module, _, last = module.rpartition(".")
                rest = f"{last}.{rest}".strip(".")
            if not module:
                return
            part = rest.partition(".")[0]
            found = self._modules[module]
            if part in found.parts:
                yield f"{module}.{part}"
                return
            yield f"{module}."
            passed_on = found.parts[""].imports.get(part)
            if not passed_on or passed_on == name:
                return
            name = passed_on

    def _ask_for_functions(self) -> None:
        """Fixtures are asked for by a parameter or a string, commands by a string."""
        for module in self._modules.values():
            is_conftest = module.path.endswith("conftest.py")
            if is_conftest or module.name.startswith(_COMMANDS):
                folder = module.path.removesuffix("conftest.py") if is_conftest else "tests/"
                for function in module.parts.keys() - {""}:
                    for user in self._modules.values():
                        if user.path.startswith(folder):
                            self._users[f"{module.name}.{function}"].update(
                                f"{user.name}.{name}"
                                for name, part in user.parts.items()
                                if function in part.texts or (is_conftest and function in part.names)
                            )

    def tests_that_reach(self, changed: Iterable[str]) -> set[str]:
        """The test files to run after a change of these files."""
        changed = set(changed)
        if changed & _EVERYTHING:
            return self.tests
        modules = {name for each in changed for name in self._modules_for(each)}
        left = {f"{name}.{part}" for name in modules for part in self._modules[name].parts}
        reached: set[str] = set()
        while left:
            part = left.pop()
            reached.add(part)
            left |= self._users[part] - reached
        paths = {self._modules[part.rpartition(".")[0]].path for part in reached}
        return (paths & self.tests) | {path for path in self.tests if path.count("/") == 1}

    @cached_property
    def _texts(self) -> dict[str, set[str]]:
        """The strings of each module, by its name."""
        parts = {name: module.parts.values() for name, module in self._modules.items()}
        return {name: {text for part in found for text in part.texts} for name, found in parts.items()}

    def _modules_for(self, path: str) -> set[str]:
        if path.endswith(".py"):
            return {self._by_path[path].name} if path in self._by_path else set()
        file = PurePosixPath(path)
        if naming := {name for name, texts in self._texts.items() if any(file.name in text for text in texts)}:
            return naming
        for folder in file.parents:
            if beside := {name for name, m in self._modules.items() if PurePosixPath(m.path).parent == folder}:
                return beside
        return set()


def changed_since(base: str) -> list[str]:
    return [*git("diff", "--name-only", base).splitlines(), *git("ls-files", "-o", "--exclude-standard").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", nargs="?")
    parser.add_argument("--share", type=int, metavar="COMMITS")
    asked = parser.parse_args()
    users = Users(git("ls-files", "-co", "--exclude-standard", "*.py").splitlines())
    if asked.share:
        shares = []
        for commit in git("log", "--no-merges", "--format=%H", f"-{asked.share}").split():
            files = git("diff-tree", "--no-commit-id", "--name-only", "-r", commit).splitlines()
            shares.append(len(users.tests_that_reach(files)) / len(users.tests))
        print(f"{len(shares)} commits select {statistics.median(shares):.0%} of the test files (median)")
        return
    base = asked.base or git("merge-base", "HEAD", "main").strip()
    print(*sorted(users.tests_that_reach(changed_since(base))), sep="\n")


if __name__ == "__main__":
    main()
