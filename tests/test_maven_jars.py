"""Jars that tests fetch by Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kafka import maven


def test_a_users_own_maven_options_come_last_and_so_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    # Maven itself takes a minute, and takes a path from the pom's folder.
    program.write_text(
        '#!/bin/sh\ncd "$(dirname "$4")" && mkdir -p "${6#-DoutputDirectory=}" && echo "$MAVEN_OPTS" > options\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setattr(maven, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("MAVEN_OPTS", "-XX:TieredStopAtLevel=4 -Xmx1g")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pom.xml").touch()
    assert maven.jars(tmp_path / "elsewhere" / "pom.xml", "kafka/libs") == tmp_path / "cache/kafka/libs"
    assert (tmp_path / "cache" / "kafka" / "libs").is_dir()
    said = (tmp_path / "elsewhere" / "options").read_text(encoding="utf-8")
    assert said == "-XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4 -Xmx1g\n"
