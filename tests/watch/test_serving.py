"""`cabafl watch` as a process, and the mistakes one can make with it."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from cabafl.cli import watch as command
from cabafl.errors import UserError
from cabafl.processes.children import free_ports
from tests.cli.program import CABAFL, QUICK, refused

PATIENCE = 90.0  # seconds; much longer than needed on an idle machine


@contextmanager
def server(*words: str, cwd: Path) -> Iterator[tuple[str, str, "subprocess.Popen[str]"]]:
    """The address and the token that are printed, and the process."""
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*CABAFL, "watch", *words], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        lines = {}
        while "Ctrl-C ends it." not in lines:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            name, _, value = line.strip().partition(": ")
            lines[name] = value
        token = next((value for name, value in lines.items() if name.startswith("Token")), "")
        yield lines["Watch"], token, process
    finally:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> str:
    """Sends SIGINT; returns standard error."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 30
    return errors


def test_a_page_of_this_folder(run: Path) -> None:
    [port] = free_ports(1)
    with server("--port", str(port), cwd=run.parent) as (url, token, process):
        assert url == f"http://127.0.0.1:{port}/"
        with httpx.Client(base_url=url) as client:
            [found] = client.get("/api/runs").json()["runs"]
            assert found["name"] == "one"
            assert not client.get("/api/session").json()["operator"]
            assert client.post("/api/login", json={"secret": token}).status_code == 200
            assert client.get("/api/session").json()["operator"]
            with client.stream("GET", "/api/stream", params={"run": found["id"]}, timeout=PATIENCE) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                seen = _until(stream, '"indexed":1.0')
                assert "event: hello" in seen
                # A page that is open does not keep the server from ending.
                errors = ended(process)
        assert errors == ""
        assert process.returncode in (0, -signal.SIGINT, 130)


def test_headers_without_end_and_web_sockets_are_refused(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with server("--port", str(port), cwd=tmp_path) as (url, _, process):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            with pytest.raises(ConnectionError):
                _send_headers(line)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = httpx.get(url, headers={**upgrade, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}, timeout=PATIENCE)
        assert answer.status_code in (200, 403)  # 200: this installation knows no web sockets
        assert httpx.get(url, timeout=PATIENCE).status_code == 200
        assert "ERROR" not in ended(process)


def _send_headers(line: socket.socket) -> None:
    for number in range(100_000):
        line.sendall(b"X-%d: %s\r\n" % (number, b"a" * 1000))


def _ask_until(client: httpx.Client, deadline: float) -> None:
    while time.monotonic() < deadline:
        client.get("/api/runs")
        time.sleep(0.1)


def _until(stream: httpx.Response, text: str) -> str:
    seen = ""
    for line in stream.iter_lines():
        seen += f"{line}\n"
        if text in line:
            return seen
    raise AssertionError(f"{text} did not come: {seen[:2000]}")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_page_follows_a_run_that_is_going_on(tmp_path: Path, end: signal.Signals) -> None:
    """`cabafl run --watch`: the page is there while the run goes on, grows with it, and ends with it, also if it is
    killed."""
    words = [*QUICK, "run.virtual_time=100000", "run.workers=0", "--out", "run", "--watch"]
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.Popen(
        [*CABAFL, "run", *words], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        url = _address(process.stderr)
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            seen: set[int] = set()
            deadline = time.monotonic() + PATIENCE
            while len(seen - {0}) < 2:
                assert time.monotonic() < deadline, seen
                for found in client.get("/api/runs").json()["runs"]:
                    assert found["state"] == "running"
                    seen.add(found["rows"])
                time.sleep(0.2)
            os.kill(process.pid, end)
            process.wait(PATIENCE)
            with pytest.raises(httpx.HTTPError):
                _ask_until(client, deadline)
    finally:
        process.kill()
        process.communicate()


def _address(errors: IO[bytes]) -> str:
    for line in errors:
        if line.startswith(b"Watch: "):
            return line.split()[1].decode()
    raise AssertionError("no address")


def test_beyond_this_machine_with_the_certificate_of_a_fleet(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")
    from cabafl.deployment.folder.layout import FleetSettings
    from cabafl.deployment.folder.provision import make_fleet

    fleet = make_fleet(tmp_path / "fleet", FleetSettings(ip=("127.0.0.1",)), 1)
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("correct horse battery\n")
    words = ["--host", "0.0.0.0", "--port", "0", "--password-file", str(password), str(run.parent), str(fleet.path)]
    with server(*words, cwd=tmp_path) as (url, token, process):
        assert token == ""
        assert url.startswith("https://0.0.0.0:")
        trust = ssl.create_default_context(cafile=str(fleet.ca))
        with httpx.Client(base_url=url.replace("0.0.0.0", "127.0.0.1"), verify=trust) as client:
            assert client.get("/api/runs").status_code == 401
            assert client.get("/metrics").status_code == 401
            login = client.post("/api/login", json={"secret": "correct horse battery"})
            assert login.status_code == 200
            assert "Secure" in login.headers["set-cookie"]
            assert len(client.get("/api/runs").json()["runs"]) == 1
        assert ended(process) == ""


def test_metrics_beside_a_server_of_real_devices(run: Path, busy: int) -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with command.exposing_metrics(port, [run.parent]):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = httpx.get(f"{url}/metrics", timeout=PATIENCE)
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert 'run="one"' in found.text
        main, *others = page_priorities()
        assert main == 19, "the page would take the processor from the run"
        assert others.count(19) >= 1, "so would the thread that reads"
        for path in ("/", "/api/runs", "/login", "/api/session"):
            assert httpx.get(f"{url}{path}").status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/metrics")
    with pytest.raises(UserError, match="cannot be used"), command.exposing_metrics(busy, [run.parent]):
        pass


def page_priorities() -> Iterator[int]:
    """The nice values of all threads of the page that this process has started, the main thread first."""
    here = os.getpid()
    for child in Path(f"/proc/{here}/task/{here}/children").read_text(encoding="utf-8").split():
        if b"--beside" in Path(f"/proc/{child}/cmdline").read_bytes():
            for stat in sorted(Path(f"/proc/{child}/task").glob("*/stat"), key=lambda path: int(path.parent.name)):
                yield int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[16])


# Mistakes


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


Capture = pytest.CaptureFixture[str]


def test_a_busy_port(busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    line = refused(["watch", str(tmp_path), "--port", str(busy)], monkeypatch, capsys)
    assert f"--port = {busy}: cannot be used: Address already in use; accepted: a free port" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "65536"], "--port = 65536: accepted: 1 to 65535"),
        (["--port", "-1"], "--port = -1: accepted: 1 to 65535"),
        (["--host", "no such host.invalid", "--insecure"], "not an address of this machine"),
        (["--host", "0.0.0.0"], "would travel unencrypted; accepted: --tls-cert and --tls-key"),
        (["--host", "::"], "would travel unencrypted; accepted: --tls-cert and --tls-key"),
        (["--host", "0.0.0.0", "--tls-cert", "a.pem"], "--tls-cert, --tls-key: accepted: both or none"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "cannot be used: No such file"),
        (["--password-file", "nothing"], "--password-file = nothing: cannot be read: No such file"),
        (["nothing"], "nothing: not a folder; accepted: run folders"),
        (["file"], "file: not a folder; accepted: run folders"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert said in refused(["watch", *words], monkeypatch, capsys)


def test_a_port_of_others_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", forbidden)
    assert "cannot be used: Permission denied" in refused(["watch", str(tmp_path), "--port", "80"], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("correct horse battery\n", 0o644, "others can read it; accepted: a file of mode 600"),
        ("short\n", 0o600, "a password of 5 characters; accepted: 12 or more"),
        ("\n", 0o600, "a password of 0 characters; accepted: 12 or more"),
    ],
)
def test_bad_passwords(
    content: str, mode: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    file.chmod(mode)
    assert said in refused(["watch", str(tmp_path), "--password-file", str(file)], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["watch"], "cabafl watch"),
        (["run", *QUICK, "--out", "run", "--watch"], "--watch"),
        (["compare", *QUICK, "--methods", "fedavg", "--watch"], "--watch"),
        (["sweep", *QUICK, "training.epochs=1,2", "--watch"], "--watch"),
    ],
)
def test_without_the_extra(
    words: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "NEEDED", ("no_such_module",))
    line = refused(words, monkeypatch, capsys)
    assert line == f"error: {what} needs no_such_module: pip install 'cabafl[watch]'\n"
    assert list(tmp_path.iterdir()) == []


def test_help_does_not_need_the_extra(tmp_path: Path) -> None:
    """The command line must not import the server."""
    code = "import sys, cabafl.cli.main; print([name for name in ('starlette', 'orjson') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_the_server_does_not_load_torch(tmp_path: Path) -> None:
    code = "import sys, cabafl.watch.serving; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
