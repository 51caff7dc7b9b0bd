"""`stateline sql`: scripts, and the shell at a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stateline.cli.sql.session import parts_of
from support.http.faulty_proxy import faulty_proxy
from support.processes import forked
from support.processes.query_server import OwningWorker, wait_until
from support.processes.served_here import served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

SCRIPT = Path(sys.executable).with_name("stateline")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")
SLOW = "select count(*) from range(100000000) a, range(100000) b where a.range % 7 = b.range % 11"


@pytest.fixture(scope="module")
def url(state_dir: Path, worker: OwningWorker) -> Iterator[httpx.URL]:
    worker.put_all({f"N{number:02}": {"seats": number} for number in range(20)})
    worker.commit()
    with served_here(state_dir, "server.scan.processes=0", "sql.timeout.ms=120000") as found:  # Ctrl-C ends them
        yield found.client.base_url


def run(url: httpx.URL, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return forked.run(["sql", "--url", str(url), *words], env=os.environ, typed=typed)


def rows(url: httpx.URL, sql: str) -> str:
    done = run(url, "-c", sql)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_rows_are_aligned_numbers_to_the_right(url: httpx.URL) -> None:
    sql = "select key, (value->>'seats')::int + 98 as n, null as no from aircraft where key < 'N03' order by key"
    assert rows(url, sql) == (
        " key |   n | no\n"
        "-----+-----+------\n"
        " N00 |  98 | NULL\n"
        " N01 |  99 | NULL\n"
        " N02 | 100 | NULL\n"
        "(3 rows)\n"
    )  # fmt: skip
    assert rows(url, "select 'é漢' as \"wide\", 1 as n") == " wide | n\n------+---\n é漢  | 1\n(1 row)\n"


def test_a_value_cannot_command_the_terminal(url: httpx.URL) -> None:
    assert r" a\x1b[2J\nb" in rows(url, "select 'a' || chr(27) || '[2J' || chr(10) || 'b' as t")


def test_rows_are_csv_and_json_as_over_http(url: httpx.URL) -> None:
    sql = "select key, value, null as no, 'a,b' as t, 2::hugeint ** 0 as one from aircraft where key = 'N07'"
    done = run(url, "--format", "json", "-c", sql)
    assert json.loads(done.stdout) == httpx.post(f"{url}/v1/sql", json={"sql": sql}).json()
    assert (run(url, "--format", "csv", "-c", "select 'a,b' as t, null as n, 5 as m")).stdout == 't,n,m\n"a,b",,5\n'


def test_a_script_runs_its_statements_and_commands_in_order(url: httpx.URL) -> None:
    script = (
        "\\d counts\n"
        "\\f csv\n"
        "select 'a;b' as s, -- a comment;\n"
        "  \"key\" from aircraft\n where key = 'N01'; select 2 as two; /* nothing; */\n"
        "\\timing\n\\x\n\\f table\n"
        "select 3 as three"
    )
    done = run(url, typed=script)
    assert (done.returncode, done.stderr) == (0, "")
    said = re.sub(r"Time: [0-9.]+ ms", "Time", done.stdout)
    assert said.splitlines() == [
        " column_name | column_type",
        "-------------+-------------",
        " key         | BIGINT",
        " value       | BIGINT",
        "(2 rows)",
        "s,key",
        "a;b,N01",
        "two",
        "2",
        "Timing is on.",
        "A line for each value.",
        "-[ row 1 ]-",
        "three | 3",
        "(1 row)",
        "Time",
    ]


def test_a_command_may_follow_a_statement_in_its_line(url: httpx.URL) -> None:
    done = run(url, "--format", "csv", "-c", "select 1 as one; \\d counts")
    assert (done.returncode, done.stdout) == (0, "one\n1\ncolumn_name,column_type\nkey,BIGINT\nvalue,BIGINT\n")


@pytest.mark.parametrize("inside", ["\u2028", "\u0085", "\x1c", "\f", "\r"])
def test_other_line_breaks_stay_in_a_text(inside: str) -> None:
    assert list(parts_of(f"select 'a{inside}b';\n\\d\n")) == [f"select 'a{inside}b'", "\\d"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("select 1 as n; select nothing from aircraft; select 2 as later", 'Referenced column "nothing" not found'),
        ("select 1 as n;\n\\nothing\nselect 2 as later", "\\nothing is no command"),
        ("select 1 as n; select * from '/etc/passwd'; select 2 as later", "does not exist"),
    ],
)
def test_a_script_ends_with_its_first_error(url: httpx.URL, script: str, said: str) -> None:
    done = run(url, typed=script)
    assert done.returncode == 2
    assert said in done.stderr
    assert (" n\n" in done.stdout, "later" in done.stdout) == (True, False)


@pytest.mark.parametrize(
    "text", ["", *(pytest.param(text, marks=long_only("none is a statement")) for text in (" ; ", "-- nothing"))]
)
def test_a_command_without_a_statement_is_a_mistake(url: httpx.URL, text: str) -> None:
    done = run(url, "-c", text)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: The statement is empty: write one SELECT.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "xml", "-c", "select 1"], "--format 'xml': table or csv or json is accepted"),
        (["--token-file", "/nowhere", "-c", "select 1"], "--token-file /nowhere cannot be read"),
        (["--ca-file", "/nowhere", "-c", "select 1"], "--ca-file /nowhere cannot be read"),
    ],
)
def test_wrong_options_are_refused_with_their_value(url: httpx.URL, words: list[str], said: str) -> None:
    done = run(url, *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_url_wins_over_the_address_of_the_app_whose_code_is_not_needed(url: httpx.URL) -> None:
    done = run(url, "nothing_of_this_name:app", "--format", "csv", "-c", "select 1 as n")
    assert (done.returncode, done.stdout) == (0, "n\n1\n")


class Terminal:
    """`stateline sql` at a terminal of its own."""

    def __init__(self, url: httpx.URL, state: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\x00\x64\x00\x00\x00\x00\x00")  # 40 lines of 100 columns
        self._process = subprocess.Popen(
            [SCRIPT, "sql", "--url", str(url)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(state)},
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Wait until it has printed this after what was expected before."""
        end_s = time.monotonic() + HANGING_S
        while text not in self._seen:
            assert time.monotonic() < end_s, self._seen
            assert self._read(), self._seen
        self._seen = self._seen.partition(text)[2]

    def end(self) -> int:
        """Wait for its end, and return the exit code."""
        try:
            while self._read():
                pass
            return self._process.wait(HANGING_S)
        finally:
            self._process.kill()
            os.close(self._master)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], HANGING_S)[0]:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # it has ended
            return False
        self._seen += ESCAPES.sub("", data.decode(errors="replace"))
        return bool(data)


def test_a_shell_completes_names_runs_statements_of_several_lines_and_remembers_them(
    url: httpx.URL, tmp_path: Path
) -> None:
    shell = Terminal(url, tmp_path)
    shell.expect("5 tables.")
    shell.expect("sql>")
    shell.type("select count(*) as n from airc\t\r")
    shell.expect("...>")
    shell.type("where key < 'N05';\r")
    shell.expect("\n 5\n(1 row)\n")
    shell.expect("sql>")
    shell.type("select nothing;\r")
    shell.expect('error: Referenced column "nothing"')
    shell.expect("sql>")
    shell.type("\\d airc\t\r")
    shell.expect(" value       | JSON\n")
    shell.expect("sql>")
    shell.type("\\q\r")
    assert shell.end() == 0
    history = tmp_path / "stateline" / "sql_history"
    assert "from aircraft\n+where key < 'N05';" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0, "statements are the user's own"


def test_ctrl_c_ends_a_statement_and_not_the_shell(url: httpx.URL, tmp_path: Path) -> None:
    with faulty_proxy(url.port or 0) as proxy:
        shell = Terminal(httpx.URL(proxy.url), tmp_path)
        shell.expect("sql>")
        before = len(proxy.requests)
        proxy.lose_connections()  # the statement makes one of its own, which shows that it was sent
        shell.type(f"{SLOW};\r")
        wait_until(lambda: len(proxy.requests) > before)
        shell.type("\x03")
        shell.expect("Cancelled.")
        shell.expect("sql>")
        shell.type("\x03")  # at the prompt
        shell.type("select 6 * 8 as n;\r")
        shell.expect("\n 48\n(1 row)\n")
        shell.expect("sql>")
        shell.type("\x04")
        assert shell.end() == 0


def test_ctrl_d_ends_the_shell_on_an_empty_line_alone(url: httpx.URL, tmp_path: Path) -> None:
    shell = Terminal(url, tmp_path)
    shell.expect("Ctrl-D ends the shell.")
    shell.expect("sql>")
    shell.type("select 7 * 8 as n")
    shell.expect("as n")
    shell.type("\x04")
    shell.expect("Ctrl-D ends the shell on an empty line.")
    shell.type(";\r")
    shell.expect("\n 56\n(1 row)\n")
    shell.expect("sql>")
    shell.type("\x04")
    shell.expect("\\q")
    assert shell.end() == 0


def test_without_its_library_a_shell_says_what_to_install(
    url: httpx.URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt_toolkit.py").write_text("raise ModuleNotFoundError(name='prompt_toolkit')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shell = Terminal(url, tmp_path)
    shell.expect("pip install 'stateline[sql]'")
    assert shell.end() == 2
