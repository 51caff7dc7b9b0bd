"""`module:app`: what is found, and what is said when it is not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.cli.loading import load_app, own_files
from stateline.cli.run_commands import nothing_collected
from stateline_store.errors import ConfigurationError

APP = "from stateline.dsl.app import App\napp = App('flights')\n"
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module of a new name into the working directory; gives the name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    names: list[str] = []

    def written(source: str) -> str:
        name = f"module_{uuid4().hex}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(source)
        return name

    yield written
    for name in names:
        sys.modules.pop(name, None)


def refusal(target: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_app(target)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_module_of_the_working_directory_is_found(write: Write) -> None:
    assert load_app(f"{write(APP)}:app").application_id == "flights"


def test_its_own_files_are_those_that_it_was_loaded_from_and_no_librarys(write: Write, tmp_path: Path) -> None:
    helper, beside = write("FACTOR = 2\n"), write("")
    name = write(f"{APP}import httpx\nimport {helper}\n")
    load_app(name)
    assert own_files(name) == sorted([tmp_path / f"{name}.py", tmp_path / f"{helper}.py"])
    assert (tmp_path / f"{beside}.py").exists()


def test_an_environment_in_the_applications_folder_is_none_of_its_files(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / ".venv" / "lib" / "site-packages"
    folder.mkdir(parents=True)
    library = f"library_{uuid4().hex}"
    (folder / f"{library}.py").write_text("")
    name = write(f"import sys\nsys.path.append({str(folder)!r})\nimport {library}\n{APP}")
    load_app(name)
    assert own_files(name) == [tmp_path / f"{name}.py"]


def test_the_attribute_is_app_unless_said(write: Write) -> None:
    assert load_app(write(APP)).application_id == "flights"


def test_an_attribute_of_an_attribute_is_found(write: Write) -> None:
    name = write(f"{APP}class Holder:\n    inner = app\n")
    assert load_app(f"{name}:Holder.inner").application_id == "flights"


def test_a_missing_module_is_named(write: Write, tmp_path: Path) -> None:
    assert refusal("no_such_module:app") == (
        f"There is no module 'no_such_module' in {tmp_path} or on the Python path."
    )


def test_a_module_that_imports_a_missing_one_is_not_called_missing_itself(write: Write, tmp_path: Path) -> None:
    name = write("import sys\nimport no_such_dependency\n")
    assert refusal(name) == (
        f"Importing {name} failed: ModuleNotFoundError: No module named 'no_such_dependency' ({name}.py, line 2)"
    )


def test_the_users_own_line_is_named_when_a_library_raises(write: Write, tmp_path: Path) -> None:
    name = write("import json\n\ndef read():\n    return json.loads('nope')\n\nread()\n")
    assert refusal(name).startswith(f"Importing {name} failed: JSONDecodeError: ")
    assert refusal(name).endswith(f" ({name}.py, line 4)")


def test_the_users_own_line_is_named_when_stateline_raises(write: Write, tmp_path: Path) -> None:
    name = write("from stateline.dsl.app import App\n\napp = App('no/slash')\n")
    message = refusal(name)
    assert message.startswith(f"Importing {name} failed: InvalidArgumentError: 'no/slash'")
    assert message.endswith(f" ({name}.py, line 3)")
    assert message.count("line 3") == 1


def test_a_syntax_error_is_named_by_its_line(write: Write, tmp_path: Path) -> None:
    name = write("x = 1\ny = = 2\n")
    assert refusal(name) == f"Importing {name} failed: SyntaxError: invalid syntax ({name}.py, line 2)"


def test_an_unknown_serde_is_answered_with_the_nearest_one_and_all_that_there_are(write: Write) -> None:
    name = write("from stateline import serdes\n\nkey = serdes.strng\n")
    message = refusal(name)
    assert "There is no serde 'strng': use serdes.string. There are serdes.avro, serdes.bytes" in message
    assert message.endswith(f" ({name}.py, line 3)")


MISTAKES = {
    "a schema that is none": ("key = serdes.avro('nope')", "nope"),
    "a registry that is no URL": ("key = serdes.avro('\"string\"', registry=3)", "registry=3: give its URL"),
    "a registry without a scheme": (
        "key = serdes.avro('\"string\"', registry='localhost:8081')",
        "registry='localhost:8081': its url has to be one, as 'http://localhost:8081'",
    ),
    "a registry without its URL": (
        "key = serdes.avro('\"string\"', registry={'urll': 'http://u:secret@localhost'})",
        "registry={'urll'}: its url has to be one, as 'http://localhost:8081'",
    ),
    "a table's history": (
        "App('a').table('t', versioned='1d')",
        "versioned='1d': give a timedelta, as timedelta(hours=1)",
    ),
    "a model without fields": ("serdes.model(int)", "int has no fields: use a pydantic model, a dataclass"),
    "a text for true or false": ("App('a').table('t', persistent='no')", "persistent='no': give True or False"),
    "a pipeline's key": (
        "App('a').pipeline(reads='in', writes='out', key=5)",
        "key=5: give the name of a column, or a list of them",
    ),
    "a model that is no class": ("key = serdes.model('x')", "'x' cannot be a model: use a pydantic model"),
    "a setting's value": ("app = App('a', config={'num.workers': 'x'})", "num.workers = 'x' (from App(config=…))"),
    "a registry's URL": (
        "app = App('a', config={'schema.registry.url': 3})",
        "schema.registry.url = 3 (from App(config=…)) is not allowed: use a URL, as http://localhost:8081",
    ),
    "a setting that is no text": ("app = App('a', config={'consumer.x': []})", "consumer.x = [] (from App(config=…))"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_a_declaration_is_named_by_its_line(mistake: str, write: Write) -> None:
    line, said = MISTAKES[mistake]
    name = write(f"from stateline import App, serdes\n\n{line}\n")
    message = refusal(name)
    assert said in message
    assert message.endswith(f" ({name}.py, line 3)")
    assert message.count("line 3") == 1


def test_a_module_that_exits_does_not_end_us(write: Write) -> None:
    assert "SystemExit: 3" in refusal(write("raise SystemExit(3)\n"))


def test_a_folder_of_the_modules_name_is_said_to_be_one(write: Write, tmp_path: Path) -> None:
    name = f"folder_{uuid4().hex}"
    (tmp_path / name).mkdir()
    folder = tmp_path / name
    assert refusal(name) == f"{name} is a folder here ({folder}), no module: run in the folder that has {name}.py."


def test_a_missing_attribute_is_explained_by_the_app_that_there_is(write: Write) -> None:
    name = write(APP.replace("app =", "flights ="))
    assert refusal(name).endswith(f"has no 'app': try {name}:flights.")


def test_a_module_without_an_app_is_said_to_have_none(write: Write) -> None:
    assert refusal(write("x = 1\n")).endswith("has no 'app': it defines no App.")


def test_something_else_than_an_app_is_refused(write: Write) -> None:
    name = write("app = {}\n")
    assert refusal(name + ":app") == f"{name}:app is of type dict, not a stateline App."


@pytest.mark.parametrize("target", ["flights.py", "./flights:app", ":app", ""])
def test_a_path_is_not_a_module(target: str) -> None:
    assert "is not MODULE:APP: write flights:app" in refusal(target)


@pytest.fixture
def collector() -> Iterator[None]:
    """As it was, when the test is over."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_no_garbage_is_looked_for_as_an_application_is_loaded_and_then_as_before_or_as_it_says() -> None:
    before = gc.isenabled(), gc.get_threshold()
    with nothing_collected():
        collections = [generation["collections"] for generation in gc.get_stats()]
        cycles = [[0] for _ in range(10_000)]
        assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert len(cycles) == 10_000
    assert (gc.isenabled(), gc.get_threshold()) == before
    with nothing_collected():
        gc.disable()
        gc.set_threshold(7)
    assert not gc.isenabled()
    assert gc.get_threshold()[0] == 7
