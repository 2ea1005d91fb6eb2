"""What passes the public port: real processes on loopback, with TLS and authentication."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'cabafl[deploy]'")
if shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))) is None:
    pytest.skip("needs nginx (Debian: apt-get install nginx-light)", allow_module_level=True)

from cabafl.deployment.flower.admission import admit, registered
from cabafl.deployment.folder.layout import CA, PRIVATE_KEY, Device, FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import add_devices, make_fleet
from cabafl.deployment.testbed.programs import environment, start_proxy, start_superlink
from cabafl.errors import RunStopped, UserError
from cabafl.processes.children import LOOPBACK, Child, Children, answers, free_ports

MIB = 1 << 20
REFUSED = 30.0  # seconds within which a refused SuperNode must exit


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetFolder:
    """Two devices."""
    return local_fleet(tmp_path_factory.mktemp("fleet") / "fleet", 2)


@pytest.fixture(scope="module")
def children(fleet: FleetFolder) -> Iterator[Children]:
    """SuperLink and public port are running, both devices are admitted."""
    with Children(fleet.state / "logs") as started:
        start_superlink(started, fleet)
        start_proxy(started, fleet)
        admit(fleet)
        yield started


def local_fleet(path: Path, devices: int) -> FleetFolder:
    port, superlink_port = free_ports(2)
    settings = FleetSettings(name=("localhost",), port=port, listen="127.0.0.1", superlink_port=superlink_port)
    return make_fleet(path, settings, devices)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def supernode(children: Children, device: Device, home: Path) -> Child:
    return children.start(f"supernode-{device.id}", supernode_command(device), environment(home), device.folder)


def supernode_command(device: Device) -> list[str]:
    """Flower's own SuperNode with the device's key; run it in the device's folder."""
    return [
        "flower-supernode",
        *("--superlink", device.server),
        *("--root-certificates", CA),
        *("--auth-supernode-private-key", PRIVATE_KEY),
        *("--node-config", f"partition-id={device.partition}"),
        *("--host", LOOPBACK, "--port", str(free_ports(1)[0])),
        *("--isolation", "process"),
    ]


def ended(child: Child) -> str:
    """Waits for a refused SuperNode to exit with an error; returns its output."""
    assert child.process.wait(REFUSED) != 0
    return child.output()


def online(fleet: FleetFolder) -> int:
    return sum(node.status == "online" for node in registered(fleet))


def ask(fleet: FleetFolder, method: str, path: str, body: bytes = b"", port: int | None = None) -> int:
    """The HTTP status for a client that trusts the fleet's CA."""
    tls = ssl.create_default_context(cafile=fleet.path / "ca.crt")
    connection = http.client.HTTPSConnection("localhost", port or fleet.settings.port, context=tls, timeout=20)
    try:
        connection.request(method, path, body, {"Content-Type": "application/protobuf"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_nginx_accepts_its_configuration(fleet: FleetFolder) -> None:
    check = subprocess.run([fleet.path / "proxy.sh", "-t"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr
    assert "warn" not in check.stderr


def test_a_device_of_the_fleet_is_accepted_and_leaves_again(
    children: Children, fleet: FleetFolder, tmp_path: Path
) -> None:
    child = supernode(children, fleet.devices()[0], tmp_path)
    until(lambda: online(fleet) == 1)
    assert child.process.poll() is None
    child.process.terminate()
    child.process.wait(20)
    until(lambda: online(fleet) == 0)


def test_a_device_without_a_key_is_refused(children: Children, fleet: FleetFolder, tmp_path: Path) -> None:
    device = fleet.devices()[0]
    command = supernode_command(device)
    place = command.index("--auth-supernode-private-key")
    del command[place : place + 2]
    output = ended(children.start("no-key", command, environment(tmp_path), device.folder))
    assert "Failed to initialize the connection" in output
    assert online(fleet) == 0


def test_an_unregistered_key_is_refused(children: Children, fleet: FleetFolder, tmp_path: Path) -> None:
    stranger = local_fleet(tmp_path / "other", 1).devices()[0]
    shutil.copyfile(fleet.path / "ca.crt", stranger.folder / "ca.crt")
    output = ended(supernode(children, replace(stranger, server=fleet.settings.address, id=7), tmp_path))
    assert "Failed to initialize the connection" in output
    assert online(fleet) == 0


def test_a_server_signed_by_another_authority_is_refused(
    children: Children, fleet: FleetFolder, tmp_path: Path
) -> None:
    device = replace(fleet.devices()[1], folder=tmp_path / "device", id=8)
    shutil.copytree(fleet.path / "devices" / "001", device.folder)
    shutil.copyfile(local_fleet(tmp_path / "other", 1).path / "ca.crt", device.folder / "ca.crt")
    assert "SSL/TLS handshake error" in ended(supernode(children, device, tmp_path))
    assert online(fleet) == 0


@pytest.mark.usefixtures("children")
def test_plain_http_is_refused(fleet: FleetFolder) -> None:
    connection = http.client.HTTPConnection("localhost", fleet.settings.port, timeout=20)
    connection.request("POST", "/v1/fleet/pull-messages")
    answer = connection.getresponse()
    assert answer.status == 400
    assert b"plain HTTP request" in answer.read()
    connection.close()


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/control/list-nodes"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/runtime/push-object"),
        ("POST", "/v1/fleet/../control/list-nodes"),
        ("POST", "/v1/fleet/%2e%2e/control/list-nodes"),
        ("POST", "/v1/fleet/..%2fcontrol%2flist-nodes"),
        ("POST", "/v1/fleet/pull-messages/../../control/list-nodes"),
        ("POST", "//v1/control/list-nodes"),
        ("POST", "/v1/fleet/pull-messages/"),
        ("GET", "/v1/fleet/pull-messages"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/"),
    ],
)
def test_only_the_calls_of_a_device_pass(method: str, path: str, fleet: FleetFolder) -> None:
    assert ask(fleet, method, path) == 403


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("call", ["register-node", "unregister-node"])
def test_registration_through_the_public_port_is_refused(call: str, fleet: FleetFolder) -> None:
    assert ask(fleet, "POST", f"/v1/fleet/{call}") == 412


@pytest.mark.usefixtures("children")
def test_only_the_proxy_refuses_control_calls(fleet: FleetFolder) -> None:
    """The SuperLink itself answers them without credentials."""
    assert ask(fleet, "POST", "/v1/control/list-nodes", port=fleet.settings.superlink_port) == 200


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/control/../fleet/pull-messages"])
def test_calls_of_a_device_need_its_signature(path: str, fleet: FleetFolder) -> None:
    assert ask(fleet, "POST", path) == 401


@pytest.mark.usefixtures("children")
def test_an_upload_of_the_size_flower_sends_passes_the_proxy(fleet: FleetFolder) -> None:
    """The SuperLink then refuses it, because it has no signature and no valid content."""
    assert ask(fleet, "POST", "/v1/fleet/push-object", bytes(6 * MIB)) in (400, 401)


@pytest.mark.usefixtures("children")
def test_an_announced_oversized_upload_is_refused_by_the_proxy_unread(fleet: FleetFolder) -> None:
    with sending(fleet, f"Content-Length: {9 * MIB}") as connection:
        assert connection.recv(12) == b"HTTP/1.1 413"


@pytest.mark.usefixtures("children")
def test_an_oversized_upload_of_unknown_length_is_refused_by_the_proxy(fleet: FleetFolder) -> None:
    with sending(fleet, "Transfer-Encoding: chunked") as connection:
        for _ in range(9):
            connection.sendall(b"%x\r\n%b\r\n" % (MIB, bytes(MIB)))
        assert connection.recv(12) == b"HTTP/1.1 413"


def sending(fleet: FleetFolder, header: str) -> ssl.SSLSocket:
    """A connection on which an upload has started."""
    tls = ssl.create_default_context(cafile=fleet.path / "ca.crt")
    plain = socket.create_connection(("127.0.0.1", fleet.settings.port), 20)
    connection = tls.wrap_socket(plain, server_hostname="localhost")
    connection.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
    return connection


def test_exactly_the_devices_of_the_folder_are_admitted(children: Children, fleet: FleetFolder, tmp_path: Path) -> None:
    before = admit(fleet)
    extra = add_devices(fleet, 1)[0]
    after = admit(fleet)
    assert after.keys() == {0, 1, 2}
    assert {number: after[number] for number in before} == before
    child = supernode(children, extra, tmp_path)
    until(lambda: online(fleet) == 1)
    Path(extra.folder).rename(tmp_path / "gone")
    assert admit(fleet) == before
    child.process.wait(REFUSED)
    status = {node.id: node.status for node in registered(fleet)}
    assert [status[node] == "unregistered" for node in after.values()] == [False, False, True]
    (tmp_path / "gone").rename(extra.folder)
    with pytest.raises(UserError, match="devices/002: its key was banned before; accepted: a new key"):
        admit(fleet)


def test_the_proxy_verifies_the_certificate_of_the_superlink(tmp_path: Path) -> None:
    fleet, other = local_fleet(tmp_path / "fleet", 1), local_fleet(tmp_path / "other", 1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(other.path / "server.crt", other.path / "server.key")
    with (
        Children(tmp_path / "logs") as children,
        socket.create_server(("127.0.0.1", fleet.settings.superlink_port)) as listening,
        tls.wrap_socket(listening, server_side=True) as impostor,
        ThreadPoolExecutor() as pool,
    ):
        proxy = start_proxy(children, fleet)
        answer = pool.submit(ask, fleet, "POST", "/v1/fleet/pull-messages")
        assert impostor.accept()[0].recv(1) == b""  # no byte of the request was sent
        assert answer.result(20) == 502
        assert "upstream SSL certificate verify error" in proxy.output()


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    with (
        Children(tmp_path / "logs") as children,
        socket.create_server(("127.0.0.1", fleet.settings.port)),
        pytest.raises(
            UserError, match=f"^port = {fleet.settings.port}: in use on this machine; accepted: a free port$"
        ),
    ):
        start_proxy(children, fleet)


def test_a_program_that_does_not_start_says_why(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    (fleet.path / "server.key").unlink()
    with (
        Children(tmp_path / "logs") as children,
        pytest.raises(RunStopped, match=r"proxy ended with code 1: .*server\.key"),
    ):
        start_proxy(children, fleet)


def test_the_public_port_closes_when_its_parent_is_killed(tmp_path: Path) -> None:
    fleet = local_fleet(tmp_path / "fleet", 1)
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from cabafl.processes.children import Children\nfrom cabafl.deployment.folder.layout import FleetFolder\n"
        "from cabafl.deployment.testbed.programs import start_proxy\n"
        "start_proxy(Children(Path(sys.argv[2])), FleetFolder.load(Path(sys.argv[1])))\nprint('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(fleet.path), str(tmp_path / "logs")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert answers(fleet.settings.port)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not answers(fleet.settings.port), 10.0)
