"""The supervisor over real processes, and its restart policy without any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stateline.processes.child import Child, RestartPolicy
from stateline.processes.supervisor import Supervisor
from stateline_store.errors import ConfigurationError
from support.run.patience import HANGING_S

DEADLINE_S = HANGING_S

# A handler writes past Python's buffers: a signal may come while print() of the line that it was waited for is at work.
READY = "import os, signal, sys, time\n"
OBEDIENT = READY + "print('up', flush=True)\ntime.sleep(3600)"
POLITE = (
    READY
    + "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), sys.exit(0)))\n"
    + "print('up', flush=True)\ntime.sleep(3600)"
)
STUBBORN = READY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(3600)"


def child(name: str, script: str, stop_order: int = 0) -> Child:
    return Child(name, (sys.executable, "-u", "-I", "-S", "-c", script), stop_order)


def quick() -> RestartPolicy:
    return RestartPolicy(first_delay_s=0.01, max_delay_s=0.02)


class Lines(list[str]):
    """What the supervisor emits, as ``name | line``."""

    def __call__(self, name: str, line: str) -> None:
        self.append(f"{name} | {line}")

    def about(self, text: str) -> list[str]:
        return [line for line in self if text in line]


def until(condition: Callable[[], object], supervisor: Supervisor | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        if supervisor is not None:
            supervisor.poll()
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def lines() -> Lines:
    return Lines()


# The policy


def test_delays_double_up_to_the_maximum() -> None:
    policy = RestartPolicy()
    delays = [policy.ended(1, life_s=1.0) for _ in range(9)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_long_life_resets_the_delay() -> None:
    policy = RestartPolicy()
    assert [policy.ended(1, 1.0), policy.ended(1, 1.0)] == [0.5, 1.0]
    assert policy.ended(-9, life_s=20.0) == 0.5
    assert policy.ended(1, life_s=19.9) == 1.0


def test_kills_of_a_child_that_works_for_half_a_minute_each_time_do_not_lengthen_its_pause() -> None:
    policy = RestartPolicy()
    assert {policy.ended(-9, life_s=30.0) for _ in range(63)} == {0.5}


def test_the_callers_mistake_is_not_restarted() -> None:
    assert RestartPolicy().ended(2, life_s=0.3) is None
    assert RestartPolicy().ended(2, life_s=59.0) is None, "a driver finds some mistakes when its JVM is up"


def test_exit_code_2_of_a_child_that_once_worked_is_restarted() -> None:
    policy = RestartPolicy()
    policy.ended(-9, life_s=3600.0)
    assert policy.ended(2, life_s=0.3) == 1.0


def test_a_child_that_fails_for_ever_keeps_the_maximal_delay() -> None:
    policy = RestartPolicy()
    assert [policy.ended(1, 0.0) for _ in range(5000)][-1] == 30.0


# Processes


def test_lines_are_forwarded_with_the_childs_name(lines: Lines) -> None:
    script = READY + "print('out'); print('err', file=sys.stderr); print('ungültig'); time.sleep(3600)"
    with Supervisor([child("a", script)], emit=lines) as supervisor:
        until(lambda: len(lines) >= 3, supervisor)
    assert set(lines[:3]) == {"a | out", "a | err", "a | ungültig"}


def test_a_killed_child_is_reported_and_started_again(lines: Lines) -> None:
    with Supervisor([child("a", OBEDIENT)], emit=lines, policy=quick) as supervisor:
        until(lambda: lines.about("a | up"), supervisor)
        first = supervisor.processes["a"]
        os.kill(first, signal.SIGKILL)
        until(lambda: len(lines.about("a | up")) == 2, supervisor)
        assert supervisor.processes["a"] != first
    assert lines.about("a ended") == ["stateline | a ended (killed by SIGKILL); it starts again in 0.01 s."]


def test_a_child_that_keeps_failing_is_tried_again_and_again_with_longer_pauses(lines: Lines) -> None:
    with Supervisor([child("a", "raise SystemExit(7)")], emit=lines, policy=quick) as supervisor:
        until(lambda: len(lines.about("ended")) >= 3, supervisor)
    assert [line.rpartition(" in ")[2] for line in lines.about("ended")[:3]] == [
        "0.01 s.",
        "0.02 s.",
        "0.02 s.",
    ]
    assert "(exit code 7)" in lines.about("ended")[0]


def test_the_callers_mistake_stops_everything_with_the_childs_own_words(lines: Lines) -> None:
    mistake = "import sys; sys.stderr.write('error: num.workers = 0 is not allowed\\n'); sys.exit(2)"
    supervisor = Supervisor([child("worker-0", mistake), child("server", OBEDIENT)], emit=lines)
    with pytest.raises(ConfigurationError, match=r"worker-0 cannot run: num\.workers = 0 is not allowed"):
        supervisor.run()
    assert supervisor.processes == {}
    assert lines.about("starts again") == []


def test_the_others_are_then_ended_by_what_says_that_the_application_cannot_run_here(lines: Lines) -> None:
    told = READY + (
        "signal.signal(signal.SIGUSR2, lambda *_: (os.write(1, b'left\\n'), sys.exit(0)))\n"
        "print('up', flush=True)\ntime.sleep(3600)"
    )
    is_there = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit(2)"
    up = Path(tempfile.mkdtemp()) / "up"

    def emit(name: str, line: str) -> None:
        lines(name, line)
        if line == "up":
            up.touch()

    python = (sys.executable, "-u", "-I", "-S", "-c")
    children = [
        Child("worker-0", (*python, told), quits_by=signal.SIGUSR2),
        Child("server", (*python, is_there, str(up))),
    ]
    with pytest.raises(ConfigurationError):
        Supervisor(children, emit=emit).run()
    assert "worker-0 | left" in lines
    with Supervisor(children[:1], emit=emit) as supervisor:
        until(lambda: lines.about("up")[1:], supervisor)
    assert lines.about("left")[1:] == [], "a stop in order is another signal"


def test_a_mistake_of_a_child_that_fails_alone_stops_the_others_only_when_they_have_made_one_too(lines: Lines) -> None:
    mistaken = [
        Child(name, (sys.executable, "-u", "-I", "-S", "-c", f"print('error: {name} is wrong'); raise SystemExit(2)"),
              fails_alone=True)
        for name in ("first", "second")
    ]  # fmt: skip
    with Supervisor([mistaken[0], child("server", OBEDIENT)], emit=lines, policy=quick) as supervisor:
        until(lambda: lines.about("first cannot run: first is wrong"), supervisor)
        until(lambda: "server | up" in lines, supervisor)
        supervisor.poll()
        assert list(supervisor.processes) == ["server"]
    with (
        Supervisor(mistaken, emit=lines, policy=quick) as supervisor,
        pytest.raises(ConfigurationError, match="is wrong"),
    ):
        until(lambda: False, supervisor)


def test_a_child_whose_stores_are_refused_stops_nothing_but_itself(lines: Lines) -> None:
    refused = "print('error: topic grew'); raise SystemExit(3)"
    with Supervisor([child("worker-0", refused), child("server", OBEDIENT)], emit=lines, policy=quick) as supervisor:
        until(lambda: lines.about("worker-0 cannot run: topic grew"), supervisor)
        until(lambda: "server | up" in lines, supervisor)
        supervisor.poll()
        assert list(supervisor.processes) == ["server"]
    assert RestartPolicy().ended(3, life_s=3600.0) is None, "however long it lived"


def test_children_stop_in_order_and_may_say_goodbye(lines: Lines) -> None:
    children = [child("last", POLITE, stop_order=1), child("first", POLITE)]
    with Supervisor(children, emit=lines) as supervisor:
        until(lambda: len(lines.about("up")) == 2, supervisor)
    assert lines[2:] == [
        "first | bye",
        "stateline | first stopped (exit code 0).",
        "last | bye",
        "stateline | last stopped (exit code 0).",
    ]


def test_a_child_that_ignores_sigterm_is_killed_at_the_deadline(lines: Lines) -> None:
    with Supervisor([child("a", STUBBORN)], emit=lines, stop_timeout_s=0.2) as supervisor:
        until(lambda: lines.about("up"), supervisor)
        pid = supervisor.processes["a"]
    assert lines[-1] == "stateline | a is killed: still running 0.2 s after it was told to stop."
    assert not is_alive(pid)


SLOW_AND_POLITE = (
    READY
    + "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2.2), os.write(1, b'bye\\n'), sys.exit(0)))\n"
    + "print('up', flush=True)\ntime.sleep(3600)"
)


def test_a_child_that_takes_longer_than_its_orders_share_still_has_until_the_deadline(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is over as soon as the child is told to stop, and the child ends when the next order was told, too."""
    goes_on, passed_s = tmp_path / "goes-on", [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed_s), sleep=time.sleep)
    monkeypatch.setattr("stateline.processes.supervisor.time", clock)

    def emit(name: str, line: str) -> None:
        lines(name, line)
        if line == "told":
            passed_s.append(HANGING_S)
        elif (name, line) == ("last", "bye"):
            goes_on.touch()

    slow = (
        READY + "def end(*_):\n os.write(1, b'told\\n')\n"
        f" while not os.path.exists({str(goes_on)!r}): time.sleep(0.01)\n"
        " sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('up', flush=True)\ntime.sleep(3600)"
    )
    children = [child("slow", slow), child("last", POLITE, stop_order=1)]
    with Supervisor(children, emit=emit, stop_timeout_s=2 * HANGING_S) as supervisor:
        until(lambda: len(lines.about("up")) == 2, supervisor)
    assert lines.about("killed") == []
    assert "stateline | slow stopped (exit code 0)." in lines


def test_a_child_of_the_last_order_has_as_long_as_it_says(lines: Lines) -> None:
    last = replace(child("last", SLOW_AND_POLITE, stop_order=1), stop_timeout_s=HANGING_S)
    with Supervisor([child("first", POLITE), last], emit=lines, stop_timeout_s=0.2) as supervisor:
        until(lambda: len(lines.about("up")) == 2, supervisor)
    assert lines.about("last is killed") == []
    assert lines.about("last stopped") == ["stateline | last stopped (exit code 0)."]  # the first one may end later


def test_what_a_child_started_ends_with_it(lines: Lines) -> None:
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        "print(p.pid, flush=True)\ntime.sleep(3600)"
    )
    with Supervisor([child("driver", script)], emit=lines, policy=quick) as supervisor:
        until(lambda: lines, supervisor)
        grandchild = int(lines[0].rpartition(" ")[2])
        assert is_alive(grandchild)
        os.kill(supervisor.processes["driver"], signal.SIGKILL)
        until(lambda: lines.about("starts again"), supervisor)
        until(lambda: not is_alive(grandchild))


def test_a_command_that_cannot_be_started_leaves_no_others_behind(lines: Lines) -> None:
    supervisor = Supervisor([child("a", OBEDIENT), Child("b", ("/no/such/program",))], emit=lines)
    with pytest.raises(FileNotFoundError), supervisor:
        pass
    assert supervisor.processes == {}


# A whole supervisor process


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that runs a Supervisor of one child "a" with the given script; ends it afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        main = tmp_path / "main.py"
        main.write_text(
            textwrap.dedent(
                f"""
                import os, sys
                from stateline.processes.child import Child
                from stateline.processes.supervisor import Supervisor
                script = {script!r}.replace("'up'", "'up', __import__('os').getpid()")
                command = (sys.executable, "-I", "-S", "-c", script)
                Supervisor([Child("a", command)]).run()
                """
            )
        )
        process = subprocess.Popen([sys.executable, str(main)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def pid_of_child(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("a          | up "), line
    return int(line.split()[-1])


Supervised = Callable[[str], "subprocess.Popen[str]"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_children_and_ends_cleanly(supervised: Supervised, number: signal.Signals) -> None:
    process = supervised(POLITE)
    pid = pid_of_child(process)
    process.send_signal(number)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert said.splitlines() == ["a          | bye", "stateline  | a stopped (exit code 0)."]
    assert not is_alive(pid)


def test_a_second_signal_kills_at_once(supervised: Supervised) -> None:
    process = supervised(STUBBORN.replace("signal.SIG_IGN", "lambda *_: os.write(1, b'no\\n')"))
    pid = pid_of_child(process)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "a          | no\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert said == "stateline  | a is killed: interrupted twice.\n"
    assert not is_alive(pid)


def test_children_do_not_outlive_a_killed_supervisor(supervised: Supervised) -> None:
    process = supervised(POLITE)
    pid = pid_of_child(process)
    assert is_alive(pid)
    process.kill()
    until(lambda: not is_alive(pid))


def guard_of(process: subprocess.Popen[str]) -> int | None:
    """The guard that runs for this supervisor, if it does."""
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if is_alive(int(pid)) and b"processes/guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    return None


def test_a_guard_that_was_killed_is_replaced_and_does_its_duty(supervised: Supervised) -> None:
    process = supervised(POLITE)
    pid = pid_of_child(process)
    until(lambda: guard_of(process) is not None)
    first = guard_of(process)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: guard_of(process) not in (None, first))
    assert is_alive(pid)
    process.kill()
    until(lambda: not is_alive(pid))
