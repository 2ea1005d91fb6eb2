"""Starts the server: address, secret, encryption."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from cabafl.deployment.folder.layout import BROKER, bracketed
from cabafl.errors import UserError
from cabafl.watch.access import Gate, Secret
from cabafl.watch.app import Site, make_app
from cabafl.watch.guard import is_loopback
from cabafl.watch.overview import Overview
from cabafl.watch.shelf import Shelf

NEXT_PORTS = 50  # that are tried if any will do
MOST_CONNECTIONS = 400


@dataclass(frozen=True)
class ServerSettings:
    """How the server is reached."""

    host: str = "127.0.0.1"
    port: int = 8642
    any_port: bool = False  # the next free one will do
    password: str | None = None  # None: a random token
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    metrics_only: bool = False


@dataclass(frozen=True)
class Opened:
    """What the user is told."""

    url: str
    token: str | None  # None: a password was given
    login_required: bool
    certificate: Path | None


def serve(roots: Sequence[Path], settings: ServerSettings, tell: Callable[[Opened], None]) -> None:
    """Runs until SIGINT or SIGTERM. Raises `UserError` if the server cannot be reached safely, or at all."""
    shelf = Shelf(roots)
    loopback = is_loopback(settings.host)
    certificate = _certificate(settings, shelf, loopback)
    listener = listen(settings)
    with contextlib.closing(listener):
        if settings.password is None:
            secret, token = Secret.random()
        else:
            secret, token = Secret(settings.password, password=True), None
        shelf.start()
        try:
            site = Site(shelf, Overview(shelf), Gate(secret), not loopback, certificate is not None)
            port = listener.getsockname()[1]
            app = make_app(site, f"cabafl_watch_{port}", settings.metrics_only)
            config = uvicorn.Config(
                app,
                http="h11",  # limits the size of headers; the other one keeps any number of them
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,  # log-ins are counted by the address of the connection, not by what it claims
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=3,
                ssl_certfile=certificate and certificate[0],
                ssl_keyfile=certificate and certificate[1],
            )
            scheme = "http" if certificate is None else "https"
            path = "/metrics" if settings.metrics_only else "/"
            url = f"{scheme}://{bracketed(settings.host)}:{port}{path}"
            opened = Opened(url, token, not loopback, certificate and certificate[0])
            _PageServer(config, site, lambda: tell(opened)).run([listener])
        finally:
            shelf.close()


class _PageServer(uvicorn.Server):
    """Says when it answers, and ends its streams when it is told to stop."""

    def __init__(self, config: uvicorn.Config, site: Site, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._site, self._ready = site, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await asyncio.get_running_loop().run_in_executor(None, self._ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._site.closing = True
        await super().shutdown(sockets)


def listen(settings: ServerSettings) -> socket.socket:
    """The socket; raises `UserError` if the address cannot be had."""
    if not 0 <= settings.port <= 65535:
        raise UserError(f"--port = {settings.port}: accepted: 1 to 65535, or 0 for any")
    last = min(settings.port + NEXT_PORTS, 65535) if settings.any_port else settings.port
    for port in range(settings.port, last + 1):
        try:
            found = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError):
            raise UserError(f"--host = {settings.host!r}: not an address of this machine") from None
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            listener.close()
            if port == last:
                where = f"--host = {settings.host}, --port = {settings.port}"
                raise UserError(f"{where}: cannot be used: {error.strerror}; accepted: a free port") from None
        else:
            return listener
    raise AssertionError("the last port is tried")


def _certificate(settings: ServerSettings, shelf: Shelf, loopback: bool) -> tuple[Path, Path] | None:
    """Certificate and key; None: not encrypted. Beyond this machine that must be said."""
    if (settings.certificate is None) != (settings.key is None):
        raise UserError("--tls-cert, --tls-key: accepted: both or none")
    if settings.certificate is not None and settings.key is not None:
        return _checked(settings.certificate, settings.key)
    if loopback or settings.insecure:
        return None
    for fleet in shelf.search_fleets():
        certificate, key = (fleet.path / f"{BROKER}.{suffix}" for suffix in ("crt", "key"))
        if certificate.is_file() and key.is_file():
            return _checked(certificate, key)
    raise UserError(
        f"--host = {settings.host}: secrets and figures would travel unencrypted; accepted: --tls-cert and --tls-key, "
        "a fleet folder with its broker's certificate and key among the folders, or --insecure"
    )


def _checked(certificate: Path, key: Path) -> tuple[Path, Path]:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise UserError(f"--tls-cert = {certificate}, --tls-key = {key}: cannot be used: {reason}") from None
    return certificate, key
