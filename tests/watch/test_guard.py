"""Who may look and who may act: nobody without a log-in beyond this machine, and no other site's page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from cabafl.watch import access
from cabafl.watch.access import Gate, Secret
from cabafl.watch.guard import POLICY, is_local_name, is_loopback
from cabafl.watch.login import local_path
from tests.watch.site import COOKIE, SECRET, Visit, visit

BEARER = {"Authorization": f"Bearer {SECRET}"}
OPEN = {("GET", "/login"), ("HEAD", "/login"), ("POST", "/login"), ("POST", "/api/login")}


@pytest.fixture
def public(run: Path, tmp_path: Path) -> Iterator[Visit]:
    """A server that listens beyond this machine."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<!doctype html><title>page</title>")
    (static / "page.js").write_text("export {};")
    with visit([run.parent], login_required=True, static=static) as found:
        yield found


def addresses(visited: Visit) -> list[tuple[str, str]]:
    """Every method and path of the server, with real ids."""
    app = visited.client.app
    assert isinstance(app, Starlette)
    found = []
    for route in app.routes:
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/page.js"))
        else:
            assert isinstance(route, Route)
            path = route.path.replace("{run}", visited.id).replace("{fleet}", "0" * 16).replace("{device:int}", "0")
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def test_every_address_refuses_who_is_not_logged_in(public: Visit) -> None:
    """Bound to an address beyond loopback and asked without a token."""
    asked = addresses(public)
    assert len(asked) > 30
    assert {path for _, path in asked} >= {"/", "/metrics", "/api/runs", "/api/stream", "/static/page.js"}
    for method, path in [*asked, ("GET", "/api/nothing"), ("GET", "/nothing"), ("DELETE", "/api/runs")]:
        if (method, path) in OPEN:
            continue
        for headers in ({}, {"Authorization": "Bearer"}, {"Cookie": f"{COOKIE}=x"}, {"Authorization": "Basic eA=="}):
            public.site.gate._failures.clear()
            response = public.client.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path, headers)
            assert b"cabafl" not in response.content.lower() or b"<form" in response.content
            if method == "GET":
                assert response.json() == {"error": "log in first"}


def test_the_open_addresses_give_nothing_away(public: Visit) -> None:
    form = public.client.get("/login")
    assert form.status_code == 200
    assert public.id not in form.text
    assert public.client.post("/login", data={"secret": "wrong"}).status_code == 401
    assert public.client.post("/api/login", json={"secret": "wrong"}).status_code == 401
    assert COOKIE not in public.client.cookies


def test_a_browser_is_shown_the_form(public: Visit) -> None:
    response = public.client.get("/", headers={"Accept": "text/html,*/*"})
    assert response.status_code == 401
    assert "<form" in response.text
    assert "<script" not in response.text
    assert "script-src" not in response.headers["content-security-policy"]
    assert public.client.get("/api/runs", headers={"Accept": "text/html"}).status_code == 401


@pytest.mark.parametrize("way", ["cookie", "bearer"])
def test_who_is_logged_in_sees_everything(public: Visit, way: str) -> None:
    if way == "cookie":
        public.log_in()
    headers = BEARER if way == "bearer" else {}
    for path in ("/", "/api/runs", f"/api/runs/{public.id}", "/metrics", "/static/page.js", "/api/session"):
        response = public.client.get(path, headers=headers)
        assert response.status_code == 200, path
    session = public.client.get("/api/session", headers=headers).json()
    assert session["operator"]
    assert (session["csrf"] is None) == (way == "bearer")


def test_the_form_lets_in_and_goes_on(public: Visit) -> None:
    data = {"secret": SECRET, "next": "/?run=1"}
    response = public.client.post("/login", data=data, follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (303, "/?run=1")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie.replace("secure of", "")
    assert public.client.get("/api/runs").status_code == 200


def test_with_encryption_the_cookie_is_for_encrypted_connections(public: Visit) -> None:
    from cabafl.watch.entrance import Entrance

    entrance = Entrance(public.site.gate, COOKIE, True, 60.0)
    from starlette.responses import Response

    assert "Secure" in entrance._remember(Response(), "x").headers["set-cookie"]


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example", "/\\evil", "javascript:alert(1)", "evil", "", "/a\nb", "/login"],
)
def test_a_log_in_leads_to_no_other_site(public: Visit, target: str) -> None:
    assert local_path(target) == "/"
    response = public.client.post("/login", data={"secret": SECRET, "next": target}, follow_redirects=False)
    assert response.headers["location"] == "/"


def test_what_is_asked_for_is_text_in_the_form(public: Visit) -> None:
    response = public.client.get("/login", params={"next": '/"><script>alert(1)</script>'})
    assert "<script>" not in response.text


def test_log_out_ends_the_session(public: Visit) -> None:
    csrf = public.log_in()
    cookie = public.client.cookies[COOKIE]
    headers = {"X-CSRF-Token": csrf}
    assert public.client.post("/api/logout", json={}, headers=headers).status_code == 200
    public.client.cookies.set(COOKIE, cookie)
    assert public.client.get("/api/runs").status_code == 401


def test_sessions_end(public: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "SESSION_SECONDS", -1.0)
    public.client.post("/api/login", json={"secret": SECRET})
    assert public.client.get("/api/runs").status_code == 401


# Too many log-ins


def test_log_ins_are_limited(public: Visit) -> None:
    for _ in range(access.FAILURES):
        assert public.client.post("/api/login", json={"secret": "wrong"}).status_code == 401
    refused = public.client.post("/api/login", json={"secret": SECRET})
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= access.FAILURE_SECONDS + 1
    assert public.client.post("/login", data={"secret": SECRET}).status_code == 429
    assert public.client.get("/api/runs", headers=BEARER).status_code == 429
    assert public.client.get("/api/runs").status_code == 401


def test_scripts_that_guess_are_limited_too(public: Visit) -> None:
    for _ in range(access.FAILURES):
        assert public.client.get("/metrics", headers={"Authorization": "Bearer guess"}).status_code == 401
    assert public.client.get("/metrics", headers=BEARER).status_code == 429


def test_a_limit_ends_and_counts_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("cabafl.watch.access.time.monotonic", lambda: now)
    gate = Gate(Secret(SECRET, password=False))
    for number in range(access.ALL_FAILURES):
        client = f"client {number // 4}"
        assert gate.wait(client) == 0.0
        assert not gate.knows("wrong", client)
    assert gate.wait("another") > 0
    now += access.FAILURE_SECONDS + 1
    assert gate.wait("another") == 0.0
    assert gate.knows(SECRET, "another")


# Other sites


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "localhost.evil.example", "1.2.3.4", "", "[::2]"]
)
def test_another_name_for_this_machine_is_refused_on_loopback(visited: Visit, host: str) -> None:
    """A page of another site that lets its name point to 127.0.0.1 cannot read anything."""
    response = visited.client.get("/api/runs", headers={"Host": host})
    assert response.status_code == 403
    assert visited.client.post("/api/login", json={"secret": SECRET}, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8642", "localhost:8642", "127.8.9.1"])
def test_names_of_this_machine(visited: Visit, host: str) -> None:
    assert is_local_name(host)
    assert visited.client.get("/api/runs", headers={"Host": host}).status_code == 200


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "::1", "localhost", "127.1.2.3"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.1", "example.org", ""]))


ACTIONS = [f"/api/fleets/{'0' * 16}/{what}" for what in ("model", "stop", "devices/0/remove")] + ["/api/logout"]


@pytest.mark.parametrize("path", ACTIONS)
def test_actions_need_a_log_in_on_loopback_too(visited: Visit, path: str) -> None:
    response = visited.client.post(path, json={"confirm": True})
    assert (response.status_code, response.json()) == (401, {"error": "log in first"})
    for method in ("GET", "PUT", "DELETE"):
        assert visited.client.request(method, path).status_code in (401, 405)


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CSRF-Token": "wrong"},
        {"X-CSRF-Token": "", "Origin": "http://localhost:8642"},
        {"right": "yes", "Origin": "http://evil.example"},
        {"right": "yes", "Origin": "null"},
        {"right": "yes", "Sec-Fetch-Site": "cross-site"},
        {"right": "yes", "Sec-Fetch-Site": "same-site"},
    ],
)
def test_actions_need_the_token_of_the_page(visited: Visit, path: str, headers: dict[str, str]) -> None:
    csrf = visited.log_in()
    sent = {key: value for key, value in headers.items() if key != "right"}
    if "right" in headers:
        sent["X-CSRF-Token"] = csrf
    assert visited.client.post(path, json={"confirm": True}, headers=sent).status_code == 403


def test_actions_with_everything_right_reach_their_address(visited: Visit) -> None:
    headers = {"X-CSRF-Token": visited.log_in(), "Origin": "http://localhost:8642", "Sec-Fetch-Site": "same-origin"}
    for path in ACTIONS[:3]:
        assert visited.client.post(path, json={"confirm": True}, headers=headers).status_code == 404
        assert visited.client.post(path, json={"confirm": 1}, headers=headers).status_code == 400
        assert visited.client.post(path, data={"confirm": "true"}, headers=headers).status_code == 400
    assert visited.client.post(ACTIONS[0], json={"confirm": True}, headers=BEARER).status_code == 404


def test_forms_of_other_sites_cannot_log_in(visited: Visit) -> None:
    for path, more in (("/login", {"data": {"secret": SECRET}}), ("/api/login", {"json": {"secret": SECRET}})):
        arguments: dict[str, Any] = more
        response = visited.client.post(path, headers={"Origin": "http://evil.example"}, **arguments)
        assert response.status_code == 403
    response = visited.client.post("/api/login", content='{"secret": "x"}', headers={"Content-Type": "text/plain"})
    assert response.status_code == 400


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b'{"secret": 7}', b"{}", b"\xff", b"[" * 5000])
def test_bodies_that_are_none(visited: Visit, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert visited.client.post("/api/login", content=content, headers=headers).status_code == 400


def test_large_bodies_are_refused(visited: Visit) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    headers = {"Content-Type": "application/json"}
    assert visited.client.post("/api/login", content=b"x" * 9000, headers=headers).status_code == 400
    assert visited.client.post("/api/login", content=pieces(), headers=headers).status_code == 400
    assert visited.client.post("/login", content=pieces()).status_code == 400


def test_headers_of_every_answer(visited: Visit) -> None:
    for path in ("/", "/api/runs", "/api/nothing", "/static/nothing", "/metrics", f"/api/runs/{visited.id}/fleet"):
        headers = visited.client.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"  # with no-referrer, a form's origin is null
        assert "access-control-allow-origin" not in headers
    assert "unsafe" not in POLICY


def test_static_files_and_nothing_beside_them(public: Visit, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "static" / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert public.client.get("/static/page.js", headers=BEARER).headers["content-type"].startswith("text/javascript")
    for path in ("/static/../secret.txt", "/static/%2e%2e/secret.txt", "/static/..%2fsecret.txt", "/static/link.txt"):
        assert public.client.get(path, headers=BEARER).status_code == 404
    assert public.client.get("/", headers=BEARER).headers["content-security-policy"] == POLICY


# Secrets


def test_a_password_is_hashed_with_argon2() -> None:
    secret = Secret("a long password", password=True)
    assert secret._hash.startswith("$argon2id$")
    assert "a long password" not in repr(vars(secret))
    assert secret.matches("a long password")
    assert secret.matches("a long password")
    for wrong in ("a long passwor", "", "x" * 5000, "\udc80"):
        assert not secret.matches(wrong)


def test_a_token_is_random_and_not_kept() -> None:
    (secret, text), (_, other) = Secret.random(), Secret.random()
    assert len(text) >= 32
    assert text != other
    assert secret.matches(text)
    assert not secret.matches(other)
    assert not secret.matches("\udc80")
    assert text not in repr(vars(secret))


def test_there_are_only_so_many_sessions() -> None:
    gate = Gate(Secret(SECRET, password=False))
    cookies = [gate.enter() for _ in range(access.MOST_SESSIONS + 10)]
    assert gate.session(cookies[0]) is None
    assert gate.session(cookies[-1]) is not None
    assert gate.session("x" * 100_000) is None
