"""What the demo's broker is made of, beyond what every test on a broker shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateline.demo.broker import jars


def test_jars_are_fetched_into_a_folder_that_is_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    # Maven itself takes a minute, and takes a path from the pom's folder.
    maven.write_text(
        '#!/bin/sh\ncd "$(dirname "$4")" && mkdir -p "${6#-DoutputDirectory=}" && echo "$MAVEN_OPTS" > options\n',
        encoding="utf-8",
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/usr/bin:/bin")
    monkeypatch.setenv("MAVEN_OPTS", "-XX:TieredStopAtLevel=4 -Xmx1g")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pom.xml").touch()
    monkeypatch.chdir(tmp_path)
    assert jars(tmp_path / "elsewhere" / "pom.xml", Path("cache"), "kafka/libs").is_dir()
    assert (tmp_path / "cache" / "kafka" / "libs").is_dir()
    said = (tmp_path / "elsewhere" / "options").read_text(encoding="utf-8")
    assert said == "-XX:TieredStopAtLevel=1 -XX:TieredStopAtLevel=4 -Xmx1g\n", "the user's own come last, and so win"
