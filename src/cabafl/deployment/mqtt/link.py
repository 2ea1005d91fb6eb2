"""One connection to the broker: mutual TLS, a persistent session, reconnection. A thread of the client library does the
network work; what arrives waits in `Link.incoming`. The broker's access list lets a device read and write its own
topics only."""

import queue
import re
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from cabafl.deployment.folder.certificates import problem
from cabafl.deployment.folder.layout import DEVICE_USER
from cabafl.errors import UserError

QOS = 1  # at least once; both sides ignore what they have already handled
RECONNECT_DELAY = 1, 15  # seconds: first, longest
SLOW_DELAY = 30, 300  # the same, when another client uses the same certificate
CONNECT_TIMEOUT = 10.0  # seconds
FLUSH_TIMEOUT = 5.0  # seconds to deliver the last messages before a disconnection
TAKEN_OVER = 142  # MQTT reason code: another client has connected with the same client ID
NOT_AUTHORIZED = 135
TOO_LARGE = 149
LARGEST_PIECE = 64 << 20  # bytes of a packet's content if the broker announces no limit
PACKET_OVERHEAD = 2048  # bytes of a packet besides its content: MQTT header, topic, properties, our header

# Topics

RUN_TOPIC = "fleet/all/run"  # retained: the greeting of the current run, empty between two runs
QUERY_TOPIC = "fleet/all/query"
MODEL_TOPICS = "fleet/all/model"  # retained below it: models that several jobs use
EVERY_UP, EVERY_HERE = "fleet/+/up", "fleet/+/here"
_FROM_DEVICE = re.compile(r"fleet/device-([0-9]{3}|[1-9][0-9]{3,6})/(up|here)")


def down_topic(device: int) -> str:
    """What the server sends to one device."""
    return f"fleet/{DEVICE_USER.format(device)}/down"


def up_topic(device: int) -> str:
    """What a device sends to the server."""
    return f"fleet/{DEVICE_USER.format(device)}/up"


def here_topic(device: int) -> str:
    """Retained: whether a device is connected and takes part."""
    return f"fleet/{DEVICE_USER.format(device)}/here"


def sender_of(topic: str) -> tuple[int, str] | None:
    """The device and the last word of a topic that a device writes; None for other topics."""
    found = _FROM_DEVICE.fullmatch(topic)
    return None if found is None else (int(found[1]), found[2])


# The connection


@dataclass(frozen=True)
class Credentials:
    """The files that identify a client to the broker, and the broker to the client."""

    ca: Path
    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer with these files; raises `UserError` if one cannot be used."""
        for path in (self.ca, self.certificate, self.key):
            if not path.is_file():
                raise UserError(f"{path}: missing; accepted: a folder made by `cabafl deploy init`")
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.ca))
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"{self.certificate}: cannot be used with {self.key.name} and {self.ca}: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


@dataclass(frozen=True)
class Account:
    """How a client connects. ``session`` seconds after it disconnects the broker forgets its session; at most
    ``window`` messages that it has not acknowledged are on their way to it."""

    host: str
    port: int
    user: str
    credentials: Credentials
    keepalive: int = 30
    session: int = 86400
    window: int = 20


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when the client has been gone for ``delay`` seconds."""

    topic: str
    payload: bytes
    delay: int


class Packet(NamedTuple):
    """A message from the broker. `Link.confirm` acknowledges it."""

    topic: str
    payload: bytes
    mid: int
    connection: int


class Connected(NamedTuple):
    """The connection is up. ``resumed``: the broker still had the session."""

    resumed: bool


class Disconnected(NamedTuple):
    """The connection is down, or could not be made; the library tries again. ``taken_over``: another client uses the
    same certificate."""

    text: str
    taken_over: bool = False


Incoming = Packet | Connected | Disconnected


class PlainClient(Client):
    """A client that does not read the properties of messages, which nobody here uses. The library ends the connection
    when it does not like one that the broker has passed on, and meets the same message again when it is back."""

    def _handle_publish(self) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        start = 2 + int.from_bytes(packet[:2], "big")  # behind the topic
        if self._in_packet["command"] & 0x06:  # with a packet ID: not QoS 0
            start += 2
        length, end = 0, start
        for end in range(start, min(start + 4, len(packet))):
            length |= (packet[end] & 0x7F) << 7 * (end - start)
            if packet[end] < 0x80:
                break
        if length:
            self._in_packet["packet"] = packet[:start] + b"\x00" + packet[end + 1 + length :]
        return super()._handle_publish()


class Link:
    """A client of the broker. It stays connected until `close`."""

    def __init__(
        self,
        account: Account,
        will: Will | None = None,
        manual: bool = False,
        deliver: Callable[[Incoming | None], None] | None = None,
    ) -> None:
        """``manual``: packets are acknowledged by `confirm` only, and delivered again until then. ``deliver`` gets what
        arrives, in the library's thread, instead of the queue ``incoming``."""
        self.account = account
        self.incoming: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self._deliver = deliver or self.incoming.put
        self.connection = 0  # number of connections so far
        self.online = threading.Event()
        self.packet_limit: int | None = None  # bytes, as the broker announces
        self._welcomed = False  # since the last attempt to connect
        self._client = PlainClient(
            CallbackAPIVersion.VERSION2,
            client_id=account.user,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=manual,
        )
        self._client.tls_set_context(account.credentials.context())
        self._client.reconnect_delay_set(*RECONNECT_DELAY)
        self._client.connect_timeout = CONNECT_TIMEOUT
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        if will is not None:
            properties = _properties(PacketTypes.WILLMESSAGE)
            properties.WillDelayInterval = will.delay
            self._client.will_set(will.topic, will.payload, QOS, retain=True, properties=properties)

    def open(self) -> None:
        """Starts to connect; does not wait. ``incoming`` says when the connection is up."""
        properties = _properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.account.session
        properties.ReceiveMaximum = self.account.window
        self._client.connect_async(
            self.account.host,
            self.account.port,
            keepalive=self.account.keepalive,
            clean_start=False,
            properties=properties,
        )
        self._client.loop_start()

    def subscribe(self, *topics: str) -> None:
        """Asks for the messages of these topics, retained ones first."""
        options = SubscribeOptions(qos=QOS)
        self._client.subscribe([(topic, options) for topic in topics])

    def unsubscribe(self, *topics: str) -> None:
        """The reverse of `subscribe`."""
        self._client.unsubscribe(list(topics))

    def publish(self, topic: str, payload: bytes, retain: bool = False, expires: float | None = None) -> None:
        """Sends a message, now or when the connection is up again. The broker drops it after ``expires`` seconds."""
        properties = None
        if expires is not None:
            properties = _properties(PacketTypes.PUBLISH)
            properties.MessageExpiryInterval = max(1, min(int(expires), 0xFFFFFFFF))
        self._client.publish(topic, payload, QOS, retain, properties)

    def confirm(self, packet: Packet) -> None:
        """Acknowledges a packet; one of an earlier connection is delivered again anyway."""
        if packet.connection == self.connection:
            self._client.ack(packet.mid, QOS)

    def slow_down(self, slow: bool = True) -> None:
        """Waits longer before each new connection, because another client takes this one's place again and again; or
        no longer than usual."""
        self._client.reconnect_delay_set(*(SLOW_DELAY if slow else RECONNECT_DELAY))

    def wake(self) -> None:
        """Puts None into ``incoming``: gives up waiting. Safe in a signal handler."""
        self._deliver(None)

    def close(self, *last: tuple[str, bytes]) -> None:
        """Publishes the last messages, retained, and disconnects; without connection it only stops trying."""
        if self.online.is_set():
            for topic, payload in last:
                info = self._client.publish(topic, payload, QOS, retain=True)
                try:
                    info.wait_for_publish(FLUSH_TIMEOUT)
                except (RuntimeError, ValueError):
                    break
        self._client.disconnect()
        self._client.loop_stop()

    # Callbacks, in the library's thread

    def _on_connect(
        self, client: Client, userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._welcomed = True
        if reason.is_failure:
            self._deliver(Disconnected(f"the broker refuses the connection: {reason}"))
            return
        limit = getattr(properties, "MaximumPacketSize", None)
        self.packet_limit = limit if isinstance(limit, int) else None
        self.connection += 1
        self.online.set()
        self._deliver(Connected(flags.session_present))

    def _on_connect_fail(self, client: Client, userdata: Any) -> None:
        error = sys.exc_info()[1]
        self._deliver(Disconnected(explain(error, self.account)))

    def _on_disconnect(
        self,
        client: Client,
        userdata: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self.online.clear()
        if self._welcomed:
            self._deliver(Disconnected(f"disconnected: {reason}", reason.value == TAKEN_OVER))
        else:
            self._deliver(Disconnected(refused(self.account)))
        self._welcomed = False

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        """A message with QoS 0 is dropped: none of ours has it, nothing limits how many of them wait here, and the
        broker ends the connection when one is acknowledged."""
        if message.qos == QOS:
            self._deliver(Packet(message.topic, bytes(message.payload), message.mid, self.connection))


def piece_size(limit: int | None) -> int:
    """Bytes of a packet's content at a broker that announces this limit for packets."""
    return LARGEST_PIECE if limit is None else min(LARGEST_PIECE, max(1024, limit - PACKET_OVERHEAD))


def _properties(packet: int) -> Properties:
    return Properties(packet)  # type: ignore[no-untyped-call]


def refused(account: Account) -> str:
    """One line about a connection that the broker has ended before a word."""
    try:
        found = problem(account.credentials.certificate, account.user)
    except UserError as error:
        found = str(error)
    return found or (
        f"the broker ends the connection at once: the certificate of {account.user} is revoked or of another fleet, or "
        "one of the clocks is wrong (or the broker does not speak MQTT 5 over TLS)"
    )


def explain(error: BaseException | None, account: Account) -> str:
    """One line about a connection that could not be made, with what to do about it."""
    where = f"{account.host}:{account.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == 9:  # X509_V_ERR_CERT_NOT_YET_VALID
            return f"{where}: its certificate is not valid yet: this machine's clock is behind; set it (NTP)"
        if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return (
                f"{where}: its certificate has expired, or this machine's clock is ahead; set the clock, or renew with "
                "`cabafl deploy init DIR --renew`"
            )
        return f"{where}: its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{where}: no TLS connection: {error.reason or error}"
    return f"{where}: cannot be reached: {error}"
