"""Shared by all connections to the SuperLink: its address, retries, and the errors a call can raise."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClient

from cabafl.deployment.server.carrier import Forgotten, Interrupted, TemporaryFailure
from cabafl.errors import UserError

Response = TypeVar("Response")
Client = TypeVar("Client", bound=ProtobufClient)

RETRY_CAP = 5.0  # longest pause between two attempts to reach the SuperLink, in seconds
_OVERLOADED = {429, 502, 503, 504}
_log = logging.getLogger(__name__)


class Halted(Interrupted):
    """The process was asked to stop."""


class RunLost(Forgotten):
    """The SuperLink has ended the run or does not know it: a new run is needed, and jobs under way are lost."""


class Refused(TemporaryFailure):
    """The SuperLink answered with an error status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the SuperLink answers {status}")
        self.status = status


@dataclass(frozen=True)
class Link:
    """Address of the SuperLink (``host:port``) and the CA that signed its certificate (None: the system's CAs)."""

    address: str
    root_certificates: Path | None = None
    insecure: bool = False

    def certificates(self) -> bytes | None:
        """The CA certificate as PEM."""
        return None if self.root_certificates is None else self.root_certificates.read_bytes()


class Retrier:
    """Repeats a call until it is answered: waits out lost connections and restarts of the SuperLink.

    Replaces the retry rule of Flower's clients, which interrupts the process on status 401. Set ``stop`` to make
    waiting calls raise `Halted`.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.outage_ended: float | None = None  # on the monotonic clock

    def invoke(self, call: Callable[..., Response], *arguments: Any) -> Response:
        """Called by Flower's clients. Raises `Refused` on a status that a retry would not change."""
        delay, waited = 0.1, 0.0
        while True:
            try:
                response = call(*arguments)
            except httpx.TransportError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise UserError(f"the SuperLink's certificate is not accepted: {error}") from None
                reason = f"{type(error).__name__}: {error}"
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status not in _OVERLOADED and not (status == 500 and waited < RETRY_CAP):
                    raise Refused(status) from None
                reason = f"status {status}"
            else:
                if waited > 1.0:
                    self.outage_ended = time.monotonic()
                return response
            _log.warning("no answer from the SuperLink (%s); next attempt in %.1f s", reason, delay)
            if self.stop.wait(delay):
                raise Halted
            waited += delay
            delay = min(2 * delay, RETRY_CAP)


def make_client(kind: type[Client], link: Link, component: str, retrier: Retrier, *interceptors: Any) -> Client:
    """One of Flower's HTTP clients with our retry rule; ``component`` is the name it reports to the SuperLink."""
    return kind.from_server_address(
        link.address,
        link.insecure,
        link.certificates(),
        [RuntimeVersionHttpInterceptor(component_name=component), *interceptors],
        retry_invoker=retrier,  # type: ignore[arg-type]
    )
