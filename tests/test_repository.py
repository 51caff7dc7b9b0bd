"""Promises of the repository that are cheap to check: what imports what, pins, make's targets."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TARGETS = ("demo", "test", "test-all", "test-cluster", "check", "wheel", "docs", "bench", "lock", "clean")


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0] if node.level == 0 else "a relative import"


def pins() -> dict[str, Version]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split()[0].split("==") for line in lines if not line.startswith(("#", " "))]
    return {name: Version(version) for name, version in pairs}


# Imports


def test_the_store_library_needs_the_standard_library_and_rocksdict_only() -> None:
    allowed = sys.stdlib_module_names | {"rocksdict", "stateline_store"}
    modules = list((ROOT / "store").rglob("*.py"))
    assert len(modules) > 5
    strangers = {f"{path.name} imports {name}" for path in modules for name in imported(path)} - {
        f"{path.name} imports {name}" for path in modules for name in allowed
    }
    assert strangers == set()


def test_no_module_imports_tests() -> None:
    own = {path.stem for path in (ROOT / "tests").iterdir()}
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "store").rglob("*.py")]:
        assert not own & set(imported(path)), path


def defined(path: Path) -> set[str]:
    """What `import *` of a module brings: its own public names, as everything else in it is imported."""
    found = set[str]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("package", ["store/stateline_store", "service/stateline/processing/operators"])
def test_type_checkers_know_the_names_that_are_loaded_when_asked_for_and_no_others(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    (loaded,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES"
    )
    known: dict[str, set[str]] = {home: set() for home in loaded}
    for node in ast.walk(tree):
        inside = ".".join(Path(package).parts[1:])
        home = str(node.module).removeprefix(f"{inside}.") if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and home in loaded:
            names = {alias.name for alias in node.names}
            known[home] |= defined(ROOT / package / f"{home.replace('.', '/')}.py") if names == {"*"} else names
    assert known == {home: set(names.split()) for home, names in loaded.items()}


# Pins


def test_every_requirement_is_pinned_to_a_version_that_pyproject_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: of for name, of in project["optional-dependencies"].items() if name != "docs"}
    wanted = [*project["dependencies"], *(line for of in extras.values() for line in of)]
    pinned = pins()
    for requirement in (r for r in map(Requirement, wanted) if r.name != project["name"]):
        version = pinned[requirement.name.lower()]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_the_lock_names_exact_versions_with_their_hashes_and_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace(" \\\n", " ").splitlines()
    pinned = r"[a-z0-9-]+==[A-Za-z0-9.+!]+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+"
    assert [each for each in packages if not re.fullmatch(pinned, each)] == []
    assert len(packages) == len(pins()) > 80
    assert "://" not in text + (ROOT / "Makefile").read_text(encoding="utf-8")


# The gate


def test_the_command_of_contributing_lists_what_the_gate_leaves_out() -> None:
    (command,) = re.findall(r"^    (grep .*)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {line.split(":")[0].split("-")[0] for line in found.splitlines() if line != "--"}
    marks = re.compile(r"\b(long_or_short|long_only|on_one_log)\(")
    assert files == {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if marks.search(path.read_text(encoding="utf-8"))
    }


# Make and CI


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_its_targets_and_help_names_them(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"make {target} " in shown


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["demo", "ONCE=1", "PORT=9"], "PYTHONPATH=tests .venv/bin/python -m flights --once --port 9"),
        (["demo"], "PYTHONPATH=tests .venv/bin/python -m flights"),
        (["demo", "NODES=3"], "PYTHONPATH=tests .venv/bin/python -m flights --nodes 3"),
        (
            ["test", "PYTEST_ARGS=-k position"],
            ".venv/bin/pytest -n 6 --dist loadscope --no-loadscope-reorder"
            " -o faulthandler_timeout=700 -o faulthandler_exit_on_timeout=true -k position",
        ),
        (["test-all"], ".venv/bin/pytest -n 6 --dist loadscope --no-loadscope-reorder --long"),
    ],
)
def test_make_passes_its_variables_on(arguments: list[str], command: str) -> None:
    make = ["make", "--dry-run", "--no-print-directory", *arguments]
    path = {"PATH": os.environ["PATH"]}  # alone: a make that runs the tests hands its own variables on
    shown = subprocess.run(make, cwd=ROOT, env=path, capture_output=True, text=True, check=True).stdout
    assert [line.strip() for line in shown.splitlines()][-1].split() == command.split()


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert re.findall(r"^step .*?(make .*)$", text, re.MULTILINE) == ["make check", "make test"]
