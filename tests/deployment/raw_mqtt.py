"""A fleet with a real broker on loopback, and clients that do what a device of ours would not."""

import queue
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cabafl.deployment.folder.layout import FleetFolder, FleetSettings
from cabafl.deployment.folder.provision import make_fleet
from cabafl.processes.children import LOOPBACK, free_ports

PATIENCE = 10.0  # seconds
OK = "accepted"  # also without subscribers
CONNECT = (
    b"\x00\x04MQTT\x05\x02\x00\x1e\x00"  # MQTT 5, clean start, keep-alive 30 s, no properties; the client id follows
)


def local_fleet(path: Path, devices: int, **settings: Any) -> FleetFolder:
    """A fleet whose broker listens on a free port of loopback."""
    return make_fleet(
        path, FleetSettings(name=("localhost",), port=free_ports(1)[0], listen=LOOPBACK, **settings), devices
    )


def certificate_of(fleet: FleetFolder, device: int | None) -> Path:
    """The certificate of a device, or of the server for None; the key is beside it."""
    return fleet.certificate if device is None else fleet.path / "devices" / f"{device:03}" / "device.crt"


def tls(fleet: FleetFolder, certificate: Path | None) -> ssl.SSLContext:
    """A client that trusts the fleet's authority and has this certificate."""
    context = ssl.create_default_context(cafile=fleet.ca)
    if certificate is not None:
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


class Client:
    """A client with the certificate of a device, or of the server (None). It does not reconnect."""

    def __init__(self, fleet: FleetFolder, device: int | None, client_id: str = "", **connect: Any) -> None:
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._events: queue.Queue[Any] = queue.Queue()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        self._client.tls_set_context(tls(fleet, certificate_of(fleet, device)))
        self._client.on_connect = lambda _c, _d, flags, code, _p: self._events.put((str(code), flags.session_present))
        self._client.on_subscribe = lambda _c, _d, _m, codes, _p: self._events.put([str(code) for code in codes])
        self._client.on_publish = lambda _c, _d, _m, code, _p: self._events.put(str(code) if code.is_failure else OK)
        self._client.on_message = lambda _c, _d, message: self.messages.put((message.topic, bytes(message.payload)))
        will, expiry = connect.pop("will", None), connect.pop("expiry", 0)
        if will is not None:
            self._client.will_set(will, b"gone", qos=1)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = expiry
        clean = expiry == 0
        self._client.connect(LOOPBACK, fleet.settings.port, 30, clean_start=clean, properties=properties)
        self._client.loop_start()
        code, self.resumed = self._event()
        assert code == "Success"

    def subscribe(self, *topics: str) -> None:
        """Subscribes; the broker grants every topic, and delivers those that are allowed."""
        self._client.subscribe([(topic, 1) for topic in topics])
        assert self._event() == ["Granted QoS 1"] * len(topics)

    def publish(self, topic: str, payload: bytes = b"x", retain: bool = False) -> str:
        """`OK`, or why the broker refuses."""
        self._client.publish(topic, payload, 1, retain)
        return str(self._event())

    def receive(self) -> tuple[str, bytes]:
        """The next message."""
        return self.messages.get(timeout=PATIENCE)

    def vanish(self) -> None:
        """Ends without a word, as a device that loses its power."""
        sock = self._client.socket()
        assert sock is not None
        self._client.loop_stop()
        sock.close()

    def close(self) -> None:
        """Says goodbye."""
        self._client.disconnect()
        self._client.loop_stop()

    def _event(self) -> Any:
        return self._events.get(timeout=PATIENCE)


@contextmanager
def clients(fleet: FleetFolder, *devices: int | None) -> Iterator[list[Client]]:
    """Connected clients; None is the server."""
    connected = [Client(fleet, device) for device in devices]
    try:
        yield connected
    finally:
        for client in connected:
            client.close()


def raw(fleet: FleetFolder, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    """A connection on which the broker has accepted an MQTT client."""
    sock = _connect(fleet, context, session)
    sock.sendall(connect_packet("any"))
    answer = sock.recv(100)
    assert answer[:1] == b"\x20"
    assert answer[3] == 0
    return sock


def refusal(fleet: FleetFolder, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> str:
    """How the broker refuses a client: the reason of the TLS alert. With TLS 1.3 it follows the client's part of the
    handshake; who writes before reading it may find the connection closed instead."""
    try:
        with _connect(fleet, context, session) as sock:
            sock.recv(1)
    except ssl.SSLError as error:
        return str(error.reason)
    raise AssertionError("accepted")


def connect_packet(client_id: str) -> bytes:
    """A CONNECT packet."""
    body = CONNECT + len(client_id).to_bytes(2, "big") + client_id.encode()
    return b"\x10" + bytes([len(body)]) + body


def _connect(fleet: FleetFolder, context: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSocket:
    plain = socket.create_connection((LOOPBACK, fleet.settings.port), PATIENCE)
    return context.wrap_socket(plain, server_hostname="localhost", session=session)


def publish_packet(topic: str, payload: bytes, qos: int = 1, retain: bool = False, properties: bytes = b"") -> bytes:
    """A PUBLISH packet of at most 127 bytes with the packet ID 1; ``properties`` as they are on the wire."""
    name = topic.encode()
    mid = b"\x00\x01" if qos else b""
    body = len(name).to_bytes(2, "big") + name + mid + bytes([len(properties)]) + properties + payload
    assert len(body) < 128
    return bytes([0x30 | qos << 1 | retain, len(body)]) + body


def user_property(value: str) -> bytes:
    """A user property called "a"."""
    text = value.encode()
    return b"\x26\x00\x01a" + len(text).to_bytes(2, "big") + text
