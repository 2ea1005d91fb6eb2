"""The fleet folder and its files: settings of the fleet (``fleet.toml``) and of each device (``device.toml``)."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cabafl.deployment.device.terms import Resources, Terms, When
from cabafl.processes.children import LOOPBACK
from cabafl.toml import read_toml, toml_value
from cabafl.validation import validated

SETTINGS = "fleet.toml"
DEVICES = "devices"
DEVICE = "device.toml"
PRIVATE_KEY = "device.key"
PUBLIC_KEY = "device.pub"
CA = "ca.crt"
ACCEPTED = "a folder made by `cabafl deploy init`"
CHUNK = 5  # MiB: Flower sends arrays in chunks of this size
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_HOME = re.compile(r"(/[\w.-]+)+")
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")


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
    if not _ADDRESS.fullmatch(text):
        raise ValueError("not an address; accepted: server.example.org:9092, 192.0.2.7:9092 or [2001:db8::7]:9092")
    return text


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, AfterValidator(_dns_name)]
Ip = Annotated[str, AfterValidator(_ip)]


class FleetSettings(BaseModel):
    """The settings of `cabafl deploy init`, stored in ``fleet.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: tuple[Name, ...] = ()
    ip: tuple[Ip, ...] = ()
    port: Port = 9092
    listen: Ip = "0.0.0.0"
    superlink_port: Port = 9093
    upload_limit: Annotated[int, Field(gt=CHUNK, le=1024)] = 8
    home: Annotated[str, AfterValidator(_home)] = "/opt/cabafl"

    @model_validator(mode="after")
    def _reachable(self) -> "FleetSettings":
        if not self.name and not self.ip:
            raise ValueError(
                "name, ip: none given; accepted: one or more DNS names (server.example.org) or IP addresses "
                "(192.0.2.7) under which devices reach the server"
            )
        if self.port == self.superlink_port:
            raise ValueError(f"superlink_port = {self.superlink_port}: the same as port; accepted: another one")
        return self

    @property
    def host(self) -> str:
        """The first name, or IP address in brackets if it needs them, under which devices reach the server."""
        return self.name[0] if self.name else bracketed(self.ip[0])

    @property
    def address(self) -> str:
        """Where devices reach the server: host and public port."""
        return f"{self.host}:{self.port}"

    @property
    def superlink(self) -> str:
        """Loopback address of the SuperLink on the server."""
        return f"{LOOPBACK}:{self.superlink_port}"

    def toml(self) -> str:
        """The content of ``fleet.toml``."""
        return "".join(f"{key} = {toml_value(value)}\n" for key, value in self.model_dump().items())


def bracketed(ip: str) -> str:
    """An IP address as written before a port: IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip


class _DeviceFile(BaseModel):
    """The content of ``device.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: Annotated[str, AfterValidator(_address)]
    id: Annotated[int, Field(ge=0)]
    partition_id: Annotated[int, Field(ge=0, alias="partition-id")]
    data: str | None = None
    root: str | None = None
    watts: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    processor: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    pace: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    heartbeat: Annotated[float, Field(ge=10, le=3600)] = 30.0
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
    threads: int = 1
    processor: str = "cpu"
    pace: float | None = None  # minimum seconds per job: lets a fast machine imitate a slow one
    heartbeat: float = 30.0  # seconds; a device counts as lost after twice as long without a heartbeat
    allow_modules: bool = False  # let the server choose any installed class as the model
    terms: Terms = field(default_factory=Terms)
    when: When = field(default_factory=When)
    limits: Resources = field(default_factory=Resources)

    @classmethod
    def load(cls, folder: Path) -> "Device":
        """Reads ``device.toml``; raises `UserError` if it is missing or wrong."""
        file = validated(_DeviceFile, read_toml(folder / DEVICE, ACCEPTED))
        values = {key: value for key, value in file if key not in ("server", "id", "partition_id")}
        return cls(folder.resolve(), file.server, file.id, file.partition_id, **values)


@dataclass(frozen=True)
class FleetFolder:
    """A fleet folder on disk, with its settings."""

    path: Path
    settings: FleetSettings

    @classmethod
    def load(cls, path: Path) -> "FleetFolder":
        """Reads ``fleet.toml``; raises `UserError` if it is missing or wrong."""
        values = read_toml(path / SETTINGS, ACCEPTED)
        return cls(path.resolve(), validated(FleetSettings, values))

    @property
    def state(self) -> Path:
        """The folder for everything written at run time."""
        return self.path / "state"

    def device_folders(self) -> dict[int, Path]:
        """The devices' folders by ID; incomplete ones have names that are not numbers and are skipped."""
        found = (path for path in (self.path / DEVICES).iterdir() if path.name.isdecimal())
        return dict(sorted((int(path.name), path) for path in found))

    def devices(self) -> list[Device]:
        """All devices, ordered by ID."""
        return [Device.load(folder) for folder in self.device_folders().values()]
