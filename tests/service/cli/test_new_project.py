"""`stateline new`: what it writes runs, and it writes over nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML brings no types of its own

from stateline.cli import main
from stateline.cli.new_project import project_files
from stateline.config.loading import PREFIX, load_config
from stateline_store import InvalidArgumentError
from support import TESTS

ROOT = TESTS.parent


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tests_of_a_new_application_pass(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "my_shop"]) == 0
    said = capfd.readouterr().out
    assert "stateline run my_shop:app" in said.splitlines()[-1]
    path = os.pathsep.join([str(ROOT / "service"), str(ROOT / "store")])
    tests = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(
        tests,
        cwd=here / "my_shop",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_nothing_of_the_template_is_left_in_it() -> None:
    files = project_files("my_shop")
    assert files.keys() == {
        *("my_shop.py", "test_my_shop.py", "stateline.toml", "requirements.txt"),
        *("Dockerfile", "compose.yaml", ".gitignore", "README.md"),
    }
    for name, text in files.items():
        assert "%" not in text, name
        assert "my_shop" in text or name in (".gitignore", "requirements.txt"), name
    assert len(files["README.md"].splitlines()) <= 20


def test_its_settings_are_accepted_and_its_containers_name_its_files_and_commands() -> None:
    files = project_files("shop")
    assert load_config("shop", file=tomllib.loads(files["stateline.toml"])).commit_interval_ms == 1000
    services: dict[str, Any] = yaml.safe_load(files["compose.yaml"])["services"]
    for service in (services["topics"], services["app"]):
        environment = {name: value for name, value in service["environment"].items() if name.startswith(PREFIX)}
        config = load_config("shop", environment=environment)
        assert (config.bootstrap_servers, config.node) == ("kafka:9092", "shop-1")
    assert services["topics"]["command"] == ["topics", "shop:app", "--create"]
    of_the_repository = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))["services"]["kafka"]
    assert services["kafka"]["image"] == of_the_repository["image"]
    assert services["kafka"]["environment"].items() <= of_the_repository["environment"].items()
    copied = [line.split()[1:-1] for line in files["Dockerfile"].splitlines() if line.startswith("COPY")]
    assert copied == [["shop.py", "stateline.toml"]]
    assert 'CMD ["run", "shop:app"]' in files["Dockerfile"]


# Of Compose's specification, those of services that the template may have: it takes no others without a word.
OF_COMPOSE = {"build", "command", "depends_on", "environment", "healthcheck", "image", "init", "ports", "restart"}
OF_COMPOSE |= {"stop_grace_period", "volumes"}


def test_each_of_its_containers_waits_for_one_that_gets_there_and_keeps_its_state_where_the_image_has_it() -> None:
    files, image = project_files("shop"), (ROOT / "Dockerfile").read_text(encoding="utf-8")
    compose = yaml.safe_load(files["compose.yaml"])
    services: dict[str, Any] = compose["services"]
    for service in services.values():
        assert service.keys() <= OF_COMPOSE
        for other, terms in service.get("depends_on", {}).items():
            if terms["condition"] == "service_healthy":
                assert services[other]["healthcheck"]["test"][0] == "CMD"
            else:
                assert terms == {"condition": "service_completed_successfully"}
                assert "restart" not in services[other]
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in compose["volumes"]
    state, port = re.search(r"STATELINE_STATE_DIR=(\S+)", image), re.search(r"^EXPOSE (\d+)$", image, re.M)
    assert state is not None
    assert port is not None
    assert services["app"]["volumes"] == [f"state:{state[1]}"]
    assert services["app"]["ports"] == [f"127.0.0.1:{port[1]}:{port[1]}"]
    (base,) = re.findall(r"^FROM (\S+)$", files["Dockerfile"], re.M)
    assert f"docker build --target slim -t {base} ." in image


def test_what_its_containers_run_is_understood_with_the_settings_that_they_have(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "shop_here"]) == 0
    monkeypatch.chdir(here / "shop_here")
    files = project_files("shop_here")
    services: dict[str, Any] = yaml.safe_load(files["compose.yaml"])["services"]
    (run,) = re.findall(r"^CMD (.*)$", files["Dockerfile"], re.M)
    for name, value in services["app"]["environment"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STATELINE_BOOTSTRAP_SERVERS", "embedded:log.db")  # no container is named kafka here
    assert main(services["topics"]["command"]) == 0
    assert "MISSING" not in capfd.readouterr().out
    assert main([*json.loads(run), "--plan", "plan.json"]) == 0
    planned = json.loads(Path("plan.json").read_text())
    assert [child["name"] for child in planned["children"]] == ["worker-0", "server"]


@pytest.mark.parametrize(
    "name",
    [
        *("my-flights", "1st", "class", "", "../flights", "flüge", "json", "stateline", "httpx", "orjson"),
        *("sitecustomize", "usercustomize", "conftest", "__init__", "__main__"),
    ],
)
def test_a_name_that_no_module_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=repr(name)):
        project_files(name)


@pytest.mark.parametrize("taken", ["shop", "shop/notes.txt"])
def test_nothing_is_written_where_something_is(here: Path, taken: str, capfd: pytest.CaptureFixture[str]) -> None:
    (here / taken).parent.mkdir(exist_ok=True)
    (here / taken).write_text("mine")
    assert main(["new", "shop"]) == 2
    assert "is there and not an empty folder" in capfd.readouterr().err
    assert [path.name for path in here.rglob("*") if path.is_file()] == [Path(taken).name]
    assert (here / taken).read_text() == "mine"


def test_an_empty_folder_is_taken(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)  # as `python -m stateline` does
    (here / "shop").mkdir()
    assert main(["new", "shop"]) == 0
    assert (here / "shop" / "shop.py").is_file()
