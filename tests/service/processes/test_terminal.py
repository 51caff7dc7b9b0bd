"""A SIGHUP of somebody who asks is told from that of a terminal that has gone."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import closing

from stateline.processes.terminal import Terminal
from support.run.patience import HANGING_S

SCRIPT = """
import signal, sys
from stateline.processes.terminal import Terminal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
terminal = Terminal()
print(terminal.is_gone(), flush=True)
sys.stdin.readline()
print(terminal.is_gone(), flush=True)
"""
# Leads a session whose terminal is that of a descriptor, then runs a script.
IN_SESSION = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(int(sys.argv[2]), termios.TIOCSCTTY, 0)
os.close(int(sys.argv[2]))
exec(sys.argv[1])
"""


def test_a_terminal_is_gone_once_it_has_hung_up() -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-c", IN_SESSION, SCRIPT, str(its)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[its], text=True) as process:
        os.close(its)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "False\n"
        os.close(ours)
        said, _ = process.communicate("\n", timeout=HANGING_S)
        assert said == "True\n"


def test_who_has_no_terminal_loses_none() -> None:
    script = "from stateline.processes.terminal import Terminal; print(Terminal().is_gone())"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=True)
    assert done.stdout == "False\n"
    with closing(Terminal()) as terminal:
        assert not terminal.is_gone()


SUPERVISES = """
import sys
from stateline.processes.child import Child
from stateline.processes.renewal import Renewal
from stateline.processes.run_plan import RunPlan
from stateline.processes.supervisor import Supervisor
sleeps = (sys.executable, '-u', '-S', '-c', "print('up'); import time; time.sleep(3600)")
supervisor = Supervisor([Child('a', sleeps)])
supervisor.run(Renewal(supervisor, (sys.executable, '-S', '-c', ''), lambda _: RunPlan([Child('a', sleeps)], ())))
"""


def test_a_terminal_that_goes_ends_what_would_take_over_new_code_by_sighup() -> None:
    ours, its = pty.openpty()
    command = [sys.executable, "-c", IN_SESSION, SUPERVISES, str(its)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[its], text=True) as process:
        os.close(its)
        assert process.stdout is not None
        assert process.stdout.readline() == "a          | up\n"
        os.close(ours)  # the kernel sends SIGHUP to who leads the session
        said = process.stdout.readline()
        process.terminate()
        assert said == "stateline  | a stopped (killed by SIGTERM).\n"
