"""Load the user's `App` from ``module:app``, like uvicorn, or say in one line why that fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from stateline.config.extras import extra_of, install_line
from stateline.dsl.app import App
from stateline.model.declared_at import SourceLine, is_library, place_in
from stateline_store.errors import ConfigurationError

_PACKAGE = str(Path(__file__).parents[1])


def load_app(target: str) -> App:
    """The App of ``module:attribute``. The default attribute is ``app``.

    It searches the working directory first, like Python itself. Raises `ConfigurationError` if the module does not
    exist, its import raises (with file and line of the user's code), or the attribute is missing or no App.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or "/" in module_name or module_name.endswith(".py"):
        raise ConfigurationError(f"{target!r} is not MODULE:APP: write flights:app for `app` in flights.py.")
    module = _imported(module_name)
    found: object = module
    for part in (attribute or "app").split("."):
        if not hasattr(found, part):
            if module.__file__ is None:  # a folder without modules: Python imports it as a package
                raise _a_folder(module_name, module)
            apps = [name for name, value in vars(module).items() if isinstance(value, App)]
            hint = f"try {module_name}:{apps[0]}" if apps else "it defines no App"
            raise ConfigurationError(f"{module_name} ({module.__file__}) has no {part!r}: {hint}.")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise ConfigurationError(f"{target} is of type {type(found).__name__}, not a stateline App.")
    found.target = target
    return found


def own_files(target: str) -> list[Path]:
    """The files of the App's module and of loaded modules in or below the same folder, without libraries. After
    `load_app`."""
    root = _root_of(sys.modules[target.partition(":")[0].partition(".")[0]])
    found = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    if root is None:
        return []
    below = (path for path in found if path.is_relative_to(root) and not path.is_relative_to(_PACKAGE))
    return sorted(path for path in below if not is_library(str(path)))


def _root_of(module: ModuleType) -> Path | None:
    if module.__file__ is None:
        return next((Path(folder).parent for folder in module.__path__), None)
    path = Path(module.__file__)
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _a_folder(name: str, module: ModuleType) -> ConfigurationError:
    folder = next(iter(module.__path__), "unknown")
    last = name.rpartition(".")[2]
    return ConfigurationError(f"{name} is a folder here ({folder}), no module: run in the folder that has {last}.py.")


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"There is no module {error.name!r} in {here} or on the Python path.") from error
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigurationError:
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, SyntaxError):
        text = error.msg  # Python appends file and line to the text
    # Errors of declarations name their place themselves.
    at = "" if hasattr(error, "declared_at") else f" ({_place(error)})"
    extra = extra_of(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    hint = f": run `{install_line(extra)}`." if extra is not None else ""
    return ConfigurationError(f"Importing {name} failed: {type(error).__name__}: {text}{at}{hint}")


def _place(error: BaseException) -> SourceLine:
    if isinstance(error, SyntaxError) and error.filename:
        return SourceLine(error.filename, error.lineno or 0)
    return place_in(reversed([*traceback.walk_tb(error.__traceback__)]))
