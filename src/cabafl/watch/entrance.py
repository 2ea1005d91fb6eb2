"""Log-in and log-out."""

from urllib.parse import parse_qs

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from cabafl.errors import UserError
from cabafl.watch.access import Gate
from cabafl.watch.guard import LARGEST_BODY, client_of, refusal, too_many
from cabafl.watch.login import local_path, login_form

WRONG = "not the token or password"


class Entrance:
    """Lets in who knows the secret, with a cookie that no script can read and no other site can send."""

    def __init__(self, gate: Gate, cookie: str, encrypted: bool, seconds: float) -> None:
        self.gate = gate
        self.cookie = cookie
        self.encrypted = encrypted
        self.seconds = int(seconds)

    async def login(self, request: Request) -> Response:
        """`POST /api/login`"""
        secret = (await json_body(request)).get("secret")
        if not isinstance(secret, str):
            raise UserError("secret: missing; accepted: the token that was printed, or the password")
        wait = self.gate.wait(client_of(request))
        if wait > 0:
            return too_many(wait)
        if not await run_in_threadpool(self.gate.knows, secret, client_of(request)):
            return refusal(401, WRONG)
        name = self.gate.enter()
        session = self.gate.session(name)
        return self._remember(JSONResponse({"operator": True, "csrf": session.csrf if session else None}), name)

    async def form(self, request: Request) -> Response:
        """`GET` and `POST /login`"""
        if request.method != "POST":
            return login_form(request.query_params.get("next", "/"))
        try:
            fields = parse_qs((await body(request)).decode("utf-8", "replace"), max_num_fields=10)
        except ValueError:
            raise UserError("body: accepted: a form of two fields") from None
        target, secret = (fields.get(name, [""])[0] for name in ("next", "secret"))
        wait = self.gate.wait(client_of(request))
        if wait > 0:
            return login_form(target, f"Too many wrong log-ins. Try again in {wait:.0f} s.", 429)
        if not await run_in_threadpool(self.gate.knows, secret, client_of(request)):
            return login_form(target, "This is not the token or password.", 401)
        return self._remember(RedirectResponse(local_path(target), 303), self.gate.enter())

    async def logout(self, request: Request) -> Response:
        """`POST /api/logout`"""
        cookie = request.cookies.get(self.cookie)
        if cookie:
            self.gate.leave(cookie)
        response = JSONResponse({"operator": False})
        response.delete_cookie(self.cookie, httponly=True, samesite="strict", secure=self.encrypted)
        return response

    def _remember(self, response: Response, name: str) -> Response:
        response.set_cookie(
            self.cookie, name, max_age=self.seconds, httponly=True, samesite="strict", secure=self.encrypted
        )
        return response


async def body(request: Request) -> bytes:
    """The body of a request, which is small; raises `UserError` if it is not."""
    found = b""
    async for piece in request.stream():
        found += piece
        if len(found) > LARGEST_BODY:
            raise UserError(f"body: accepted: at most {LARGEST_BODY} bytes")
    return found


async def json_body(request: Request) -> dict[str, object]:
    """A JSON object; raises `UserError` for anything else, also for another content type: forms of other sites cannot
    send JSON."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise UserError("content type: accepted: application/json")
    try:
        found = orjson.loads(await body(request))
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise UserError("body: accepted: a JSON object")
    return found
