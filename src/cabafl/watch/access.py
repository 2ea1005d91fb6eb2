"""Who may look, and who may act: secrets, sessions and log-ins."""

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error

SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 256
LONGEST_SECRET = 1024  # letters
FAILURES = 5  # wrong secrets of one address within `FAILURE_SECONDS`
ALL_FAILURES = 50  # of all addresses together
FAILURE_SECONDS = 60.0


class Secret:
    """The token that is printed once, or a password. Neither is kept: of the token a checksum, of the password an
    argon2 hash."""

    def __init__(self, text: str, password: bool) -> None:
        self._hasher = PasswordHasher() if password else None
        self._hash = self._hasher.hash(text) if self._hasher else ""
        self._sum = b"" if password else _checksum(text)
        self._verified = b""  # checksum of a password that was right: scripts send it with every request
        self._key = secrets.token_bytes(32)

    @classmethod
    def random(cls) -> tuple["Secret", str]:
        """A new token, and its text, to be shown once."""
        text = secrets.token_urlsafe(24)
        return cls(text, password=False), text

    def matches(self, text: str) -> bool:
        """Whether this is the secret."""
        if len(text) > LONGEST_SECRET:
            return False
        if self._hasher is None:
            return hmac.compare_digest(self._sum, _checksum(text))
        keyed = hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256")
        if self._verified and hmac.compare_digest(self._verified, keyed):
            return True
        try:
            self._hasher.verify(self._hash, text)
        except (Argon2Error, UnicodeEncodeError):
            return False
        self._verified = keyed
        return True


def _checksum(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class LoginSession:
    """One browser that is logged in."""

    ends: float  # on the monotonic clock
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))


class Gate:
    """Checks secrets, counts wrong ones, and keeps the sessions. May be used by several threads."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._sessions: dict[str, LoginSession] = {}
        self._failures: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()  # a password takes 64 MiB to check

    def wait(self, client: str) -> float:
        """Seconds until this address may try again; 0 if it may now."""
        now = time.monotonic()
        with self._lock:
            while self._failures and self._failures[0][0] <= now - FAILURE_SECONDS:
                self._failures.popleft()
            own = [at for at, who in self._failures if who == client]
            limits = ((own, FAILURES), ([at for at, _ in self._failures], ALL_FAILURES))
            waits = [times[-most] + FAILURE_SECONDS - now for times, most in limits if len(times) >= most]
        return max(waits, default=0.0)

    def knows(self, text: str, client: str) -> bool:
        """Whether this is the secret; counts it if it is not. Call `wait` first: while others of many requests at once
        are checked, this one may have to wait too, and is then not looked at."""
        with self._one_at_a_time:
            if self.wait(client) > 0:
                return False
            if self._secret.matches(text):
                return True
            with self._lock:
                self._failures.append((time.monotonic(), client))
        return False

    def enter(self) -> str:
        """Begins a session; returns the value of its cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            now = time.monotonic()
            self._sessions = {key: value for key, value in self._sessions.items() if value.ends > now}
            while len(self._sessions) >= MOST_SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
            self._sessions[_key(name)] = LoginSession(now + SESSION_SECONDS)
        return name

    def session(self, cookie: str) -> LoginSession | None:
        """The session of a cookie; None if there is none, or it has ended."""
        found = self._sessions.get(_key(cookie)) if len(cookie) <= LONGEST_SECRET else None
        return found if found is not None and found.ends > time.monotonic() else None

    def leave(self, cookie: str) -> None:
        """Ends a session."""
        with self._lock:
            self._sessions.pop(_key(cookie), None)


def _key(cookie: str) -> str:
    """Sessions are looked up by a checksum: how long that takes tells nothing about the cookies there are."""
    return _checksum(cookie).hex()
