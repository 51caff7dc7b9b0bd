"""Where the application declares something, file and line: at the end of every error of a declaration, and of one that
an application's import raises, and remembered with each name (`stateline.dsl.names`). Looked up when something is
declared or refused, never with a record.
"""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar, cast

from stateline_store import CallerError

Declaring = TypeVar("Declaring", bound=Callable[..., Any])

_PACKAGES = ("stateline", "stateline_store")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True, slots=True)
class SourceLine:
    file: str
    line: int

    def __str__(self) -> str:
        return f"{_from_here(self.file)}, line {self.line}"


def here() -> SourceLine:
    """Return the application's line that is running."""
    return place_in((frame, frame.f_lineno) for frame in _outwards(sys._getframe()))


def place_in(frames: Iterable[tuple[FrameType, int]]) -> SourceLine:
    """The line of the application among these frames, each with its line, the innermost first: neither this package's,
    nor a library's, nor that of code without a file. An application may itself be either: then the innermost that is
    not this package's. There is one frame at least."""
    others = None
    for frame, line in frames:
        last = SourceLine(frame.f_code.co_filename, line)
        if not _is_ours(frame):
            others = others or last
            if not last.file.startswith("<") and not is_library(last.file):
                return last
    return others or last


def is_library(file: str) -> bool:
    """Whether it is one of Python's own, or installed."""
    return file.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def says_where(declaring: Declaring) -> Declaring:
    """Let each `CallerError` of a function, or of a class's public methods, end with the application's line that called
    it. Errors of functions that a method returns, such as decorators, do so too."""
    if not isinstance(declaring, type):
        return _placed(declaring)
    for name, method in list(vars(declaring).items()):
        if isinstance(method, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(declaring, name, _placed(method))
    return declaring


def placed(error: CallerError, place: SourceLine) -> None:
    """Let the error's message end with this place, unless it ends with one already."""
    if not hasattr(error, "declared_at"):
        message = str(error).removesuffix(".")
        error.args = (f"{message} ({place})",)
        error.declared_at = place  # type: ignore[attr-defined]  # so that an outer declaration adds none


def _placed(function: Declaring, *, is_decorator: bool = False) -> Declaring:
    """`is_decorator`: the returned function is the application's own and stays unchanged."""

    @functools.wraps(function)
    def declared(*arguments: Any, **named: Any) -> Any:
        try:
            made = function(*arguments, **named)
        except CallerError as error:
            placed(error, here())
            raise
        return made if is_decorator or not inspect.isfunction(made) else _placed(made, is_decorator=True)

    return cast("Declaring", declared)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _PACKAGES


def _from_here(file: str) -> str:
    """Return the path relative to the working directory, or the whole path if the file is not below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere; or there is no working directory any more
        return file
