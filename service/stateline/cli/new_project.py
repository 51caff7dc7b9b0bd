"""`stateline new`: make a folder with an application, from the files of `project_template`."""

from __future__ import annotations

import importlib.util
import keyword
import sys
from pathlib import Path
from typing import Annotated

import typer

from stateline_store.errors import ConfigurationError, InvalidArgumentError

_TEMPLATE, _SUFFIX = "project_template", ".template"
_OTHER_NAMES = {"module.py": "{name}.py", "test_module.py": "test_{name}.py", "gitignore": ".gitignore"}
# Python imports the first two at each start, pytest imports conftest, and __init__ makes the folder a package.
_TAKEN = {"sitecustomize", "usercustomize", "conftest", "__init__", "__main__", "pytest"}


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the module, the App and the folder.")],
) -> None:
    """Make a new application.

    It writes the folder NAME: a module, its tests, settings, a Dockerfile and a Compose file with a broker. The folder
    must be new or empty.

    Example: stateline new shop
    """
    files = project_files(name)
    folder = Path(name)
    write_project(folder, files)
    typer.echo(f"Written to {folder}: {', '.join(sorted(files))}. Next:")
    for line in (
        f"cd {name} && python -m pytest",
        f"stateline topics {name}:app --create",
        f"stateline run {name}:app",
    ):
        typer.echo(f"  {line}")


def project_files(name: str) -> dict[str, str]:
    """File name → text of an application with this name.

    Raises `InvalidArgumentError` if this is no module name, or is Python's or an installed library's.
    """
    from importlib import resources
    from importlib.metadata import version

    if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise InvalidArgumentError(
            f"{name!r} cannot be a Python module: take letters, digits and '_', not a digit first, as in my_flights."
        )
    if name in sys.stdlib_module_names or name in _TAKEN or _is_installed(name):
        raise InvalidArgumentError(
            f"Python, pytest or an installed library imports a module {name!r}: take another name."
        )
    values = {"%NAME%": name, "%VERSION%": version("stateline")}
    files = {}
    for template in resources.files(__package__).joinpath(_TEMPLATE).iterdir():
        text = template.read_text(encoding="utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        plain = template.name.removesuffix(_SUFFIX)
        files[_OTHER_NAMES.get(plain, plain).format(name=name)] = text
    return files


def _is_installed(name: str) -> bool:
    """Whether Python finds this module outside the working directory, in which the new one will be."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin is not None else [*(spec.submodule_search_locations or ())]
    return not all(Path.cwd() in [*Path(place).absolute().parents][:2] for place in places)


def write_project(folder: Path, files: dict[str, str]) -> None:
    """Write these files into a new or empty folder. Never overwrites.

    Raises `ConfigurationError` if something is in the way.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder.resolve()} is there and not an empty folder: take another name, or move it.")
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        with (folder / file).open("x", encoding="utf-8") as output:
            output.write(text)
