"""New code takes the place of what runs, over real processes, and stays out when it cannot."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stateline.processes import renewal
from stateline.processes.child import HAND_OVER, Child
from stateline.processes.renewal import Renewal, SourceFiles
from stateline.processes.run_plan import RunPlan
from stateline.processes.supervisor import Supervisor
from stateline_store.errors import ConfigurationError
from support.processes.query_server import wait_until
from support.run.length import long_only
from support.run.patience import HANGING_S

SETUP = """
import os, signal, sys, time
from stateline.processes.child import ReadySignal
readiness = ReadySignal()
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'ends\\n'), os._exit(0)))
signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'hands over\\n'), os._exit(0)))
"""
WORKS = SETUP + "print('works', flush=True)\nreadiness.say()\ntime.sleep(3600)"
NEVER_READY = SETUP + "print('begins', flush=True)\ntime.sleep(3600)"
CRASHES = SETUP + "sys.stderr.write('error: no such column\\n')\nsys.exit(1)"
# It goes when the supervisor has closed its end of the pipe: it has taken note then.
CRASHES_AT_WORK = """
import os, select, sys
from stateline.processes.child import ReadySignal
ends = [os.dup(int(number)) for name, number in os.environ.items() if name == "SUPERVISOR_READY_FD"]
ReadySignal().say()
for end in ends:
    noted = select.poll()
    noted.register(end, 0)
    noted.poll()
sys.stderr.write("error: no such column\\n")
sys.exit(1)
"""
MISTAKEN = SETUP + "sys.stderr.write('error: a mistake\\n')\nsys.exit(2)"
LOADS = (sys.executable, "-S", "-c", "")
FAILS = (sys.executable, "-S", "-c", "import sys; sys.exit('error: it has a mistake in line 3')")


def worker(name: str, script: str = WORKS) -> Child:
    return Child(name, (sys.executable, "-c", script), stop_order=1, says_ready=True)


def server(script: str = WORKS) -> Child:
    return replace(worker("server", script), stop_order=0, takes_over=True, leaves_by=HAND_OVER)


class Scene:
    """A supervisor, and what it and its children say."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.lines: list[str] = []
        self.supervisor = Supervisor(children, emit=lambda name, line: self.lines.append(f"{name} | {line}"))
        self.supervisor.start()
        wait_until(lambda: self.said("| works") == len(children))

    def renew(self, children: Sequence[Child], load: Sequence[str] = LOADS) -> list[str]:
        """Bring them, up to the end; what was said since."""
        before, renewal = len(self.lines), Renewal(self.supervisor, load, lambda _: RunPlan(children, ()))
        renewal.begin("SIGHUP")
        self.until(renewal, self.is_through)
        return self.lines[before + 1 :]

    def until(self, renewal: Renewal, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.supervisor.poll()
            renewal.advance()
            return condition()

        wait_until(holds)

    def is_through(self) -> bool:
        last = self.lines[-1]
        ends = " the new code.", " do this again.", " say why."
        return last.endswith(ends) or "Nothing was replaced:" in last

    def said(self, text: str) -> int:
        return sum(text in line for line in self.lines)


@pytest.fixture(autouse=True)
def settles_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each child has to run for two seconds before the next one is replaced: these tests would wait for little else."""
    monkeypatch.setattr("stateline.processes.renewal._SETTLES_WITHIN_S", 0.2)


@pytest.fixture
def settles_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends soon after it is ready ends before it counts as settled, on a slow machine, too."""
    monkeypatch.setattr("stateline.processes.renewal._SETTLES_WITHIN_S", 2.0)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene([worker("worker-0"), worker("worker-1"), server()])
    yield made
    made.supervisor.stop()


def test_workers_end_before_they_start_anew_one_after_the_other_and_a_server_ends_after(scene: Scene) -> None:
    said = scene.renew([server(), worker("worker-0"), worker("worker-1")])
    assert said == [
        "worker-0 | ends",
        "stateline | worker-0 stopped (exit code 0).",
        "worker-0 | works",
        "worker-1 | ends",
        "stateline | worker-1 stopped (exit code 0).",
        "worker-1 | works",
        "server | works",
        "server | hands over",
        "stateline | server stopped (exit code 0).",
        "stateline | Everything runs the new code.",
    ]


def test_what_runs_goes_on_when_the_code_cannot_be_loaded(scene: Scene) -> None:
    before = scene.supervisor.processes
    assert scene.renew([], FAILS) == ["stateline | Nothing was replaced: it has a mistake in line 3"]
    assert scene.supervisor.processes == before


def test_what_the_supervisor_cannot_take_over_is_said_and_changes_nothing(scene: Scene) -> None:
    def refused(path: Path) -> RunPlan:
        raise ConfigurationError("server.port = 2 instead of 1: start it anew for that.")

    before, renewal = scene.supervisor.processes, Renewal(scene.supervisor, LOADS, refused)
    renewal.begin("SIGHUP")
    scene.until(renewal, lambda: scene.said("Nothing was replaced: server.port = 2") == 1)
    assert scene.supervisor.processes == before


def test_a_mistake_that_a_worker_finds_leaves_the_others_and_the_server_as_they_are(scene: Scene) -> None:
    before = scene.supervisor.processes
    said = scene.renew([worker("worker-0", MISTAKEN), worker("worker-1"), server()])
    assert "stateline | worker-0 cannot run: a mistake" in said
    assert said[-1].startswith("stateline | worker-0 has ended with the new code: a mistake.")
    after = scene.supervisor.processes
    assert (after["worker-1"], after["server"]) == (before["worker-1"], before["server"])
    scene.lines.clear()
    assert scene.renew([worker("worker-0"), server()])[-1] == "stateline | Everything runs the new code."
    assert set(scene.supervisor.processes) == {"worker-0", "server"}


@pytest.mark.usefixtures("settles_later")
@pytest.mark.parametrize("script", [CRASHES, CRASHES_AT_WORK])
def test_a_worker_that_ends_before_it_is_ready_or_soon_after_is_the_only_one_with_the_new_code(
    scene: Scene, script: str
) -> None:
    before = scene.supervisor.processes
    said = scene.renew([worker("worker-0", script), worker("worker-1"), server()])
    assert "stateline | worker-0 ended (exit code 1); it starts again in 0.5 s." in said
    assert said[-1].startswith(
        "stateline | worker-0 has ended with the new code: no such column. Everything that was not"
    )
    after = scene.supervisor.processes
    assert (after["worker-1"], after["server"]) == (before["worker-1"], before["server"])


@pytest.mark.usefixtures("settles_later")
@pytest.mark.parametrize(
    "script",
    [pytest.param(CRASHES, marks=long_only("the test before has one that ends before it is ready")), CRASHES_AT_WORK],
)
def test_the_last_worker_that_ends_before_it_is_ready_or_soon_after_leaves_the_server_with_the_old_code(
    scene: Scene, script: str
) -> None:
    before = scene.supervisor.processes
    said = scene.renew([worker("worker-0"), worker("worker-1", script), server()])
    assert said[-1].startswith(
        "stateline | worker-1 has ended with the new code: no such column. Everything that was not"
    )
    assert scene.supervisor.processes["server"] == before["server"]


@pytest.mark.usefixtures("settles_later")
def test_the_only_worker_that_ends_soon_after_it_is_ready_is_not_said_to_run_the_new_code(scene: Scene) -> None:
    said = scene.renew([worker("worker-0", CRASHES_AT_WORK)])
    assert said[-1].startswith("stateline | worker-0 has ended with the new code: no such column.")


@long_only("the tests before have one that ends at other moments")
@pytest.mark.usefixtures("settles_later")
def test_a_worker_that_ends_while_the_server_is_started_anew_is_not_said_to_run_the_new_code(
    scene: Scene, tmp_path: Path
) -> None:
    ends, ended = tmp_path / "ends", tmp_path / "ended"
    unlucky = f"""{SETUP}
from pathlib import Path
if Path({str(ends)!r}).exists():  # started again
    Path({str(ended)!r}).touch()
    time.sleep(3600)
readiness.say()
while not Path({str(ends)!r}).exists():
    time.sleep(0.01)
sys.exit('error: no such column')
"""
    slow = f"""{SETUP}
from pathlib import Path
Path({str(ends)!r}).touch()
while not Path({str(ended)!r}).exists():
    time.sleep(0.01)
readiness.say()
time.sleep(3600)
"""
    said = scene.renew([worker("worker-0", unlucky), server(slow)])
    assert said[-1] == "stateline | worker-0 has ended with the new code: no such column. Mend it, and do this again."


def test_a_worker_that_does_not_get_ready_is_not_said_to_run_the_new_code(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_READY_WITHIN_S", 0.1)
    said = scene.renew([worker("worker-0", NEVER_READY)])
    assert said[-1].startswith("stateline | The new code is started everywhere, and not ready in worker-0")


def test_a_server_that_does_not_come_up_leaves_the_one_that_answers(scene: Scene) -> None:
    before = scene.supervisor.processes["server"]
    said = scene.renew([worker("worker-0"), worker("worker-1"), server(MISTAKEN)])
    assert "server has ended with the new code: a mistake" in said[-1]
    assert scene.supervisor.processes["server"] == before
    assert not scene.said("hands over")


@long_only("the test before has one that ends, and others workers that end so soon")
@pytest.mark.usefixtures("settles_later")
def test_a_server_that_ends_soon_after_it_is_ready_leaves_the_one_that_answers(scene: Scene) -> None:
    before = scene.supervisor.processes["server"]
    said = scene.renew([worker("worker-0"), worker("worker-1"), server(CRASHES_AT_WORK)])
    assert "server has ended with the new code: no such column" in said[-1]
    assert scene.supervisor.processes["server"] == before
    assert not scene.said("hands over")


def test_children_that_the_new_code_does_not_have_end_and_others_come(scene: Scene) -> None:
    scene.renew([worker("worker-0"), worker("worker-2"), server()])
    assert set(scene.supervisor.processes) == {"worker-0", "worker-2", "server"}


def test_a_stop_in_the_middle_ends_the_new_ones_and_the_old_ones(scene: Scene) -> None:
    renewal = Renewal(scene.supervisor, LOADS, lambda _: RunPlan([server(NEVER_READY)], ()))
    renewal.begin("SIGHUP")
    scene.until(renewal, lambda: scene.said("server | begins") == 1)
    renewal.close()
    scene.supervisor.stop()
    assert scene.said("server | ends") == 2
    assert not scene.supervisor.processes


def test_what_was_asked_for_meanwhile_comes_afterwards(scene: Scene) -> None:
    renewal = Renewal(
        scene.supervisor, LOADS, lambda _: RunPlan([worker("worker-0"), worker("worker-1"), server()], ())
    )
    renewal.begin("SIGHUP")
    scene.until(renewal, lambda: scene.said("worker-0 | works") == 2)
    renewal.begin("SIGHUP")
    scene.until(renewal, lambda: scene.said("Everything runs the new code.") == 2)
    assert scene.said("worker-0 | works") == 3


def crashes_until_mistaken(folder: Path) -> Child:
    """Ends with 1, and with 2 as soon as there is a file."""
    script = f"""
import pathlib, sys
print('works', flush=True)
sys.exit(2 if pathlib.Path({str(folder / "mistaken")!r}).exists() else 1)
"""
    return Child("worker-0", (sys.executable, "-c", script), stop_order=1)


def test_a_mistake_that_is_saved_while_a_worker_crashes_is_waited_out_by_a_run_that_reloads(tmp_path: Path) -> None:
    scene = Scene([crashes_until_mistaken(tmp_path), server()])
    code = tmp_path / "code.py"
    try:
        renewal = Renewal(scene.supervisor, LOADS, lambda _: RunPlan([worker("worker-0"), server()], ()), SourceFiles())
        renewal.watch([code])
        (tmp_path / "mistaken").touch()
        scene.until(renewal, lambda: scene.said("worker-0 cannot run: ") == 1)
        assert "server" in scene.supervisor.processes
        code.touch()
        scene.until(renewal, lambda: scene.said("Everything runs the new code.") == 1)
        assert set(scene.supervisor.processes) == {"worker-0", "server"}
    finally:
        scene.supervisor.stop()


def test_a_worker_that_starts_again_with_code_that_could_not_be_loaded_stops_nothing(tmp_path: Path) -> None:
    scene = Scene([crashes_until_mistaken(tmp_path), server()])
    try:
        renewal = Renewal(scene.supervisor, FAILS, lambda _: RunPlan([], ()))
        renewal.begin("SIGHUP")
        scene.until(renewal, lambda: scene.said("Nothing was replaced") == 1)
        (tmp_path / "mistaken").touch()
        scene.until(renewal, lambda: scene.said("worker-0 cannot run: ") == 1)
        assert set(scene.supervisor.processes) == {"server"}
    finally:
        scene.supervisor.stop()


def test_after_a_mistake_a_module_that_was_missing_is_enough_to_load_the_code_anew(
    scene: Scene, tmp_path: Path
) -> None:
    code, missing = tmp_path / "code.py", tmp_path / "helpers.py"
    code.touch()
    load = (sys.executable, "-S", "-c", f"import os, sys; sys.exit(not os.path.exists({str(missing)!r}))")
    children = [worker("worker-0"), worker("worker-1"), server()]
    renewal = Renewal(scene.supervisor, load, lambda _: RunPlan(children, [code]), SourceFiles())
    renewal.watch([code])
    code.write_text("import helpers")
    scene.until(renewal, lambda: scene.said("Nothing was replaced") == 1)
    missing.touch()
    scene.until(renewal, lambda: scene.said("Everything runs the new code.") == 1)
    assert scene.said("helpers.py changed: loading the code again.") == 1


LOADS_FOR_EVER = """
import os, sys, time
with open(sys.argv[1], "w") as told:
    print(os.getpid(), file=told)
time.sleep(3600)
"""
SUPERVISES = """
import sys
from stateline.processes.child import Child
from stateline.processes.renewal import Renewal
from stateline.processes.run_plan import RunPlan
from stateline.processes.supervisor import Supervisor
loads = (sys.executable, '-S', '-c', sys.argv[1], sys.argv[2])
supervisor = Supervisor([])
renewal = Renewal(supervisor, loads, lambda _: RunPlan([], ()))
renewal.begin("SIGHUP")
supervisor.run(renewal)
"""


def test_what_loads_the_code_does_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "it"
    with subprocess.Popen([sys.executable, "-c", SUPERVISES, LOADS_FOR_EVER, str(told)]) as process:
        wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
        loads = os.pidfd_open(int(told.read_text()))
        process.kill()
    ended = select.poll()
    ended.register(loads, select.POLLIN)
    assert ended.poll(HANGING_S * 1000)
    os.close(loads)
