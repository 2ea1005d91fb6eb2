"""Stands before every address of the server: who asks, whether they may, and the headers of each answer."""

import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cabafl.watch.access import Gate, LoginSession
from cabafl.watch.login import login_form

LOGIN, API_LOGIN = "/login", "/api/login"
JSON = "application/json"
LARGEST_BODY = 8192  # bytes that a request may bring
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class Identity:
    """Who asks: a browser that is logged in, a script that sends the secret, or anybody."""

    session: LoginSession | None = None
    bearer: bool = False

    @property
    def operator(self) -> bool:
        """Whether they know the secret."""
        return self.session is not None or self.bearer


class Guard:
    """Refuses what is not allowed before any other part sees the request.

    Without a log-in: everything, if the server listens beyond this machine; else everything that changes something. On
    loopback only names of this machine are accepted as host, so that no page of another site can reach the server under
    a name of its own. Nothing but a log-in is accepted by POST without a CSRF token, unless the request itself brings
    the secret.
    """

    def __init__(self, app: ASGIApp, gate: Gate, login_required: bool, cookie: str) -> None:
        self.app = app
        self.gate = gate
        self.login_required = login_required
        self.cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes the request on with ``identity`` in its state."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:  # no web sockets
                await send({"type": "websocket.close", "code": 1008})
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        connection = HTTPConnection(scope)
        answer, identity = await self._judge(connection)
        if answer is not None:
            await answer(scope, receive, dressed)
            return
        scope.setdefault("state", {})["identity"] = identity
        await self.app(scope, receive, dressed)

    async def _judge(self, connection: HTTPConnection) -> tuple[Response | None, Identity]:
        """What to answer instead; None if the request is allowed."""
        if not self.login_required and not is_local_name(connection.headers.get("host", "")):
            return refusal(403, "host: accepted: localhost, 127.0.0.1 or [::1]"), Identity()
        if too_large(connection.headers.get("content-length", "0")):
            return refusal(400, f"body: accepted: at most {LARGEST_BODY} bytes"), Identity()
        identity, wait = await self._identify(connection)
        if wait > 0:
            return too_many(wait), identity
        path, method = connection.scope["path"], connection.scope["method"]
        if path in (LOGIN, API_LOGIN) and (path == LOGIN or method == "POST"):
            return (None if same_origin(connection) else refusal(403, "origin: not this page")), identity
        if (self.login_required or method not in ("GET", "HEAD")) and not identity.operator:
            return self._ask_for_login(connection), identity
        if method not in ("GET", "HEAD"):
            return self._check_change(connection, identity), identity
        return None, identity

    async def _identify(self, connection: HTTPConnection) -> tuple[Identity, float]:
        """Who asks, and how long they have to wait because of wrong secrets."""
        scheme, _, text = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            client = client_of(connection)
            wait = self.gate.wait(client)
            if wait > 0:
                return Identity(), wait
            given = text.strip().encode("latin-1").decode("utf-8", "replace")  # headers arrive as Latin-1
            return Identity(bearer=await run_in_threadpool(self.gate.knows, given, client)), 0.0
        cookie = connection.cookies.get(self.cookie)
        return Identity(self.gate.session(cookie) if cookie else None), 0.0

    @staticmethod
    def _check_change(connection: HTTPConnection, identity: Identity) -> Response | None:
        if not same_origin(connection):
            return refusal(403, "origin: not this page")
        if identity.session is not None:
            given = connection.headers.get("x-csrf-token", "")
            if not hmac.compare_digest(given.encode(), identity.session.csrf.encode()):
                return refusal(403, "X-CSRF-Token: missing or wrong; accepted: that of /api/session")
        if connection.headers.get("content-type", "").split(";")[0].strip() != JSON:
            return refusal(400, f"content type: accepted: {JSON}")
        return None

    def _ask_for_login(self, connection: HTTPConnection) -> Response:
        wants_page = "text/html" in connection.headers.get("accept", "")
        if wants_page and connection.scope["method"] == "GET":
            return login_form(connection.scope["path"], status=401)
        return refusal(401, "log in first", {"WWW-Authenticate": "Bearer"})


def refusal(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that cannot be carried out."""
    return JSONResponse({"error": text}, status, headers)


def too_many(wait: float) -> Response:
    """The answer to who has tried too many secrets."""
    return refusal(429, f"too many wrong log-ins; try again in {wait:.0f} s", {"Retry-After": str(int(wait) + 1)})


def client_of(connection: HTTPConnection) -> str:
    """The address that log-ins are counted by; of IPv6 the network, of which one person has all addresses."""
    host = connection.client.host if connection.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def same_origin(connection: HTTPConnection) -> bool:
    """Whether a browser says that the request comes from our own page; a script says nothing."""
    if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = connection.headers.get("origin")
    try:
        return origin is None or urlsplit(origin).netloc == connection.headers.get("host", "")
    except ValueError:
        return False


def is_local_name(host: str) -> bool:
    """Whether a Host header names this machine's loopback."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or is_loopback(name)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def too_large(length: str) -> bool:
    """Whether the body of a request is larger than any of ours."""
    return not length.isdecimal() or len(length) > 9 or int(length) > LARGEST_BODY
