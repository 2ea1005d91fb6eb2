"""The fleet folder and its files: settings of the fleet (``fleet.toml``) and of each device (``device.toml``)."""

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cabafl.deployment.device.terms import Resources, Terms, When, function_name
from cabafl.errors import UserError
from cabafl.processes.children import LOOPBACK
from cabafl.toml import read_toml, toml_value
from cabafl.validation import validated
from cabafl.values import Processor

# User names at the broker, which are the common names of the certificates.
SERVER = "server"
DEVICE_USER = "device-{:03d}"
SETTINGS = "fleet.toml"
DEVICES, REVOKED = "devices", "revoked"
DEVICE = "device.toml"
CA, CA_KEY = "ca.crt", "ca.key"
REVOCATIONS = "crl.pem"
ISSUED = "issued.txt"
BROKER, OWN = "broker", "device"  # NAME.crt and NAME.key
ACCESS = "acl"
ACCEPTED = "a folder made by `cabafl deploy init`"
MIB = 1 << 20
LARGEST_PACKET = (1 << 28) - 1  # bytes: the limit of MQTT itself
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_HOME = re.compile(r"(/[\w.-]+)+")
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
_LOOPBACK_6 = "::1"
M = TypeVar("M", bound=BaseModel)


def _dns_name(text: str) -> str:
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in text.split(".")) or _is_ip(text):
        raise ValueError("not a DNS name; accepted: server.example.org, without wildcards")
    return text


def _ip(text: str) -> str:
    if not _is_ip(text):
        raise ValueError("not an IP address; accepted: 192.0.2.7 or 2001:db8::7")
    return text


def _home(text: str) -> str:
    if not _HOME.fullmatch(text):
        raise ValueError("not usable in a unit file; accepted: an absolute path of letters, digits, '.', '_' and '-'")
    return text


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if not match or not 1 <= int(match[2]) <= 65535 or not _resolvable(match[1]):
        raise ValueError("not an address; accepted: server.example.org:8883, 192.0.2.7:8883 or [2001:db8::7]:8883")
    return text


def _resolvable(host: str) -> bool:
    """Whether a host can be looked up. A name that cannot would end the thread of the connection."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, AfterValidator(_dns_name)]
Ip = Annotated[str, AfterValidator(_ip)]
Address = Annotated[str, AfterValidator(_address)]


class FleetSettings(BaseModel):
    """The settings of `cabafl deploy init`, stored in ``fleet.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: tuple[Name, ...] = ()
    ip: tuple[Ip, ...] = ()
    port: Port = 8883
    listen: Ip = "0.0.0.0"
    packet_limit: Annotated[int, Field(ge=1, le=256)] = 64
    queue_limit: Annotated[int, Field(ge=1)] = 2048
    home: Annotated[str, AfterValidator(_home)] = "/opt/cabafl"
    broker: Address | None = None

    @model_validator(mode="after")
    def _reachable(self) -> "FleetSettings":
        if not self.name and not self.ip:
            raise ValueError(
                "name, ip: none given; accepted: one or more DNS names (server.example.org) or IP addresses "
                "(192.0.2.7) under which devices reach the broker"
            )
        if self.queue_limit < self.packet_limit:
            raise ValueError(
                f"queue_limit = {self.queue_limit}: less than one packet; accepted: packet_limit "
                f"({self.packet_limit}) or more"
            )
        return self

    @property
    def host(self) -> str:
        """The first name, or IP address in brackets if it needs them, under which devices reach the broker."""
        return self.name[0] if self.name else bracketed(self.ip[0])

    @property
    def address(self) -> str:
        """Where devices reach the broker: host and port."""
        return f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port at which the server reaches the broker: on this machine, unless ``broker`` names another."""
        if self.broker is not None:
            return endpoint(self.broker)
        anywhere = {"0.0.0.0": LOOPBACK, "::": _LOOPBACK_6}
        return anywhere.get(self.listen, self.listen), self.port

    @property
    def packet_bytes(self) -> int:
        """The largest packet the broker accepts."""
        return min(self.packet_limit * MIB, LARGEST_PACKET)

    @property
    def certified(self) -> tuple[list[str], list[str]]:
        """The names and IP addresses for which the broker's certificate is valid."""
        own = (self.endpoint[0],) if _is_ip(self.endpoint[0]) else ()
        return (
            list(dict.fromkeys((*self.name, "localhost"))),
            list(dict.fromkeys((*self.ip, LOOPBACK, _LOOPBACK_6, *own))),
        )

    def toml(self) -> str:
        """The content of ``fleet.toml``."""
        given = self.model_dump(exclude_none=True)
        return "".join(f"{key} = {toml_value(value)}\n" for key, value in given.items())


def bracketed(ip: str) -> str:
    """An IP address as written before a port: IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip


def endpoint(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of an address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class _DeviceFile(BaseModel):
    """The content of ``device.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: Address
    id: Annotated[int, Field(ge=0)]
    partition_id: Annotated[int, Field(ge=0, alias="partition-id")]
    data: Annotated[str, AfterValidator(function_name)] | None = None
    root: str | None = None
    watts: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    idle_watts: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    sensor: bool = True
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    processor: Processor = "cpu"
    pace: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    heartbeat: Annotated[int, Field(ge=5, le=3600)] = 30
    allow_modules: bool = False
    terms: Terms = Terms()
    when: When = When()
    limits: Resources = Resources()


@dataclass(frozen=True)
class Device:
    """A device's folder, which contains everything the device needs."""

    folder: Path
    server: str
    id: int
    partition: int
    data: str | None = None  # package.module:function that returns the samples, instead of a part of the data set
    root: str | None = None  # folder or file of the data set
    watts: float = 10.0  # power during training, if the machine has no sensor
    idle_watts: float = 0.0  # power between two jobs of a run
    sensor: bool = True  # use the machine's power sensor; False: it is not this device's, or not to be used
    threads: int = 1
    processor: str = "cpu"
    pace: float | None = None  # minimum seconds per job: lets a fast machine imitate a slow one
    heartbeat: int = 30  # seconds, the keep-alive time of MQTT: after 1.5 times as long in silence it counts as lost
    allow_modules: bool = False  # let the server choose installed code: model, task, optimiser, augmentation, data
    terms: Terms = field(default_factory=Terms)
    when: When = field(default_factory=When)
    limits: Resources = field(default_factory=Resources)

    @classmethod
    def load(cls, folder: Path) -> "Device":
        """Reads ``device.toml``; raises `UserError` if it is missing or wrong."""
        file = _read(_DeviceFile, folder / DEVICE)
        values: dict[str, Any] = {name: getattr(file, name) for name in type(file).model_fields}
        return cls(folder.resolve(), partition=values.pop("partition_id"), **values)

    @property
    def user(self) -> str:
        """Its user name and client id at the broker."""
        return DEVICE_USER.format(self.id)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the broker."""
        return endpoint(self.server)

    @property
    def ca(self) -> Path:
        """The certificate of the fleet's authority."""
        return self.folder / CA

    @property
    def certificate(self) -> Path:
        """Its own certificate."""
        return self.folder / f"{OWN}.crt"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.folder / f"{OWN}.key"


@dataclass(frozen=True)
class FleetFolder:
    """A fleet folder on disk, with its settings."""

    path: Path
    settings: FleetSettings

    @classmethod
    def load(cls, path: Path) -> "FleetFolder":
        """Reads ``fleet.toml``; raises `UserError` if it is missing or wrong."""
        return cls(path.resolve(), _read(FleetSettings, path / SETTINGS))

    @property
    def state(self) -> Path:
        """The folder for everything written at run time."""
        return self.path / "state"

    @property
    def ca(self) -> Path:
        """The certificate of the fleet's authority."""
        return self.path / CA

    @property
    def certificate(self) -> Path:
        """The certificate with which the server connects to the broker."""
        return self.path / f"{SERVER}.crt"

    @property
    def key(self) -> Path:
        """The private key of the server."""
        return self.path / f"{SERVER}.key"

    @property
    def pid_file(self) -> Path:
        """Written by a broker that was started from this folder."""
        return self.state / "broker" / "pid"

    def device_ids(self) -> frozenset[int]:
        """The IDs of all devices of the fleet. Lists two folders and reads no file, so that a server can follow
        changes."""
        return _numbers(self.path / DEVICES) - self.revoked_ids()

    def revoked_ids(self) -> frozenset[int]:
        """The IDs of devices that were removed. They are never used again."""
        return _numbers(self.path / REVOKED)

    def device_folders(self) -> dict[int, Path]:
        """The devices' folders by ID. Incomplete ones have names that are not numbers and are skipped; removed devices
        are none, even if their folder has been copied here again."""
        folder = self.path / DEVICES
        found = {int(path.name): path for path in folder.glob("*") if path.name.isdecimal()}  # none without the folder
        return {number: found[number] for number in sorted(found.keys() - self.revoked_ids())}

    def devices(self) -> list[Device]:
        """All devices, ordered by ID."""
        return [Device.load(folder) for folder in self.device_folders().values()]


def _numbers(folder: Path) -> frozenset[int]:
    try:
        with os.scandir(folder) as found:
            return frozenset(int(entry.name) for entry in found if entry.name.isdecimal())
    except FileNotFoundError:
        return frozenset()


def _read(model: type[M], file: Path) -> M:
    values = read_toml(file, ACCEPTED)
    try:
        return validated(model, values)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
