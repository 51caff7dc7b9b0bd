"""Promises of the repository that are cheap to check: what imports what, pins, make's targets, deployment files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own
from packaging.requirements import Requirement
from packaging.version import Version

from stateline.config import load_config
from stateline.config_sources import PREFIX

ROOT = Path(__file__).parents[1]
TARGETS = ("demo", "test", "check", "bench", "lock", "clean")


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0] if node.level == 0 else "a relative import"


def pins() -> dict[str, Version]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {name.lower().replace("_", "-"): Version(version) for name, version in pairs}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text(encoding="utf-8")))


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
    own = {path.stem for path in (ROOT / "tests").glob("*.py")}
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "store").rglob("*.py")]:
        assert not own & set(imported(path)), path


# Pins


def test_every_requirement_is_pinned_to_a_version_that_pyproject_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = pins()
    for requirement in map(Requirement, wanted):
        version = pinned[requirement.name.lower()]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_the_lock_names_exact_versions_and_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines)
    assert "://" not in text + (ROOT / "Makefile").read_text(encoding="utf-8")


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
        (["demo", "ONCE=1", "PORT=9"], ".venv/bin/stateline demo --once --port 9"),
        (["demo"], ".venv/bin/stateline demo"),
        (["test", "PYTEST_ARGS=-k position"], ".venv/bin/pytest -k position"),
    ],
)
def test_make_passes_its_variables_on(arguments: list[str], command: str) -> None:
    # Run by a make itself, as in CI, make would also say which directory it enters and leaves.
    make = ["make", "--dry-run", "--no-print-directory", *arguments]
    shown = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.strip() for line in shown.splitlines()][-1].split() == command.split()


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert re.findall(r"^step (.*)$", text, re.MULTILINE) == ["make check", "make test"]


# Containers


def test_the_image_copies_only_what_the_build_context_has() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copies = [line.split()[1:-1] for line in dockerfile.splitlines() if re.match(r"COPY (?!--from)", line)]
    copied = {name for names in copies for name in names}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_runs_without_privileges() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER stateline$", dockerfile, re.MULTILINE)
    assert dockerfile.index("USER stateline") < dockerfile.index('ENTRYPOINT ["stateline"]')


def settings_of(environment: dict[str, str]) -> None:
    """Raises when a variable of a deployment file is not a setting that Stateline accepts."""
    load_config("flights", environment={k: v for k, v in environment.items() if k.startswith(PREFIX)})


def test_variables_of_the_image_are_settings() -> None:
    pairs = re.findall(r"(STATELINE_\w+)=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert len(pairs) == 2
    settings_of(dict(pairs))


def test_the_composed_services_share_one_state_volume() -> None:
    (compose,) = documents("compose.yaml")
    ours = {name: service for name, service in compose["services"].items() if name != "kafka"}
    assert set(ours) == {"worker", "pipeline", "server"}
    for service in ours.values():
        assert "state:/var/lib/stateline" in service["volumes"]
        assert service["init"] is True
        settings_of(service["environment"])
    assert {"state", "broker"} == set(compose["volumes"])


def test_the_settings_of_the_config_map_are_accepted() -> None:
    config_map = next(document for document in documents("kubernetes.yaml") if document["kind"] == "ConfigMap")
    config = load_config("flights", file=tomllib.loads(config_map["data"]["stateline.toml"]))
    assert config.exactly_once


def test_kubernetes_objects_refer_to_each_other() -> None:
    everything = documents("kubernetes.yaml")
    names = {(document["kind"], document["metadata"]["name"]) for document in everything}
    sets = [document["spec"] for document in everything if document["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for spec in sets:
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert ("Service", spec["serviceName"]) in names
        volumes = {volume["name"] for volume in pod["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            settings_of({variable["name"]: "a-pod" for variable in container.get("env", [])})
        assert pod["enableServiceLinks"] is False
        assert pod["terminationGracePeriodSeconds"] > 30, "less than a stop may take"


def test_a_worker_and_a_server_share_the_pod_that_the_service_selects() -> None:
    everything = documents("kubernetes.yaml")
    stores = next(d for d in everything if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "flights")
    service = next(d for d in everything if d["kind"] == "Service" and d["metadata"]["name"] == "flights")
    assert service["spec"]["selector"] == stores["spec"]["template"]["metadata"]["labels"]
    containers = {c["name"]: c for c in stores["spec"]["template"]["spec"]["containers"]}
    assert [containers[name]["args"][0] for name in ("worker", "server")] == ["worker", "serve"]
    assert containers["server"]["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert containers["server"]["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert containers["server"]["ports"][0]["name"] == service["spec"]["ports"][0]["targetPort"]


def test_the_unit_stops_the_supervisor_alone_and_does_not_repeat_a_mistake() -> None:
    unit = (ROOT / "deploy" / "stateline.service").read_text(encoding="utf-8")
    assert "KillMode=mixed" in unit
    assert "RestartPreventExitStatus=2" in unit
