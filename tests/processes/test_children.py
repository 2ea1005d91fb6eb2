"""Programs end with the process that started them, in reverse order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cabafl.errors import RunStopped
from cabafl.processes.children import Children, answers, free_ports

LISTEN = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
LAST_WORDS = """
import signal, sys, time
def end(*_):
    with open(sys.argv[1], "a") as file: file.write(sys.argv[2])
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from cabafl.processes.children import Children
folder = Path(sys.argv[1])
child = Children(folder).start("child", [sys.executable, "-c", "import time; time.sleep(60)"], os.environ, folder)
print(child.process.pid, flush=True)
time.sleep(60)
"""


def wait_until(seconds: float, condition: object) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if callable(condition) and condition():
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or " Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_a_port_is_waited_for_and_freed(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with Children(tmp_path) as children:
        children.start("listener", [sys.executable, "-c", LISTEN, str(port)], os.environ, tmp_path).wait_for_port(port)
        assert answers(port)
    assert not answers(port)


def test_a_program_that_ends_early_is_reported_with_its_last_line(tmp_path: Path) -> None:
    [port] = free_ports(1)
    command = [sys.executable, "-c", "import sys; print('first'); sys.exit('no such luck')"]
    with Children(tmp_path) as children:
        child = children.start("unlucky", command, os.environ, tmp_path)
        with pytest.raises(RunStopped, match="unlucky ended with code 1: no such luck"):
            child.wait_for_port(port)
    assert child.output().splitlines() == ["first", "no such luck"]


def test_a_port_that_never_answers_is_given_up(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with Children(tmp_path) as children:
        child = children.start("deaf", [sys.executable, "-c", "import time; time.sleep(60)"], os.environ, tmp_path)
        with pytest.raises(RunStopped, match=f"deaf does not answer on port {port} after 0.2 s"):
            child.wait_for_port(port, 0.2)


def test_the_last_one_started_is_stopped_first(tmp_path: Path) -> None:
    order = tmp_path / "order"
    with Children(tmp_path) as children:
        for name in "abc":
            child = children.start(name, [sys.executable, "-c", LAST_WORDS, str(order), name], os.environ, tmp_path)
            assert wait_until(20, lambda child=child: "ready" in child.output())
    assert order.read_text() == "cba"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread of the program itself would be needed")
def test_children_do_not_survive_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)  # the child sets its own death signal right after it starts
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_until(10, lambda: not alive(child))


def test_free_ports_differ() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert not any(answers(port) for port in ports)


def test_priorities_count_but_the_terminal_does_not_reach_them(tmp_path: Path) -> None:
    """A session of its own would make `nice` useless on Linux; the parent's group would get the terminal's Ctrl-C."""
    children = Children(tmp_path)
    child = children.start("child", [sys.executable, "-c", "import time; time.sleep(60)"], os.environ, tmp_path)
    try:
        assert os.getsid(child.process.pid) == os.getsid(0)
        assert os.getpgid(child.process.pid) == child.process.pid
    finally:
        children.stop()
