"""`cabafl watch`, and ``--watch`` of other commands."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cabafl.cli.console import console, errors, print_notice
from cabafl.errors import UserError
from cabafl.processes.children import end

if TYPE_CHECKING:
    from cabafl.watch.serving import Opened

PORT = 8642
NEEDED = ("starlette", "uvicorn", "orjson", "argon2", "prometheus_client")
PASSWORD = "CABAFL_WATCH_PASSWORD"
Watch = Annotated[bool, typer.Option("--watch", help="Show the run in a browser meanwhile; prints the address.")]


Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[DIR]...", help="Folders with runs and fleets at any depth; default: this folder."),
]
Host = Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a log-in and encryption.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help=f"Its first line is the password; else {PASSWORD} in the environment; else a token is printed.",
    ),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate, PEM; default: that of a fleet.")
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not encrypt, also beyond this machine.")]
MetricsOnly = Annotated[bool, typer.Option("--metrics-only", help="Serve /metrics and nothing else.")]


def watch(
    folders: Folders = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0: any.")] = PORT,
    host: Host = "127.0.0.1",
    open_page: Open = False,
    password: PasswordFile = None,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    metrics_only: MetricsOnly = False,
    beside: Annotated[bool, typer.Option("--beside", hidden=True, help="For --watch of other commands.")] = False,
) -> None:
    """Show runs and fleets in a browser while they go on. Only reads their folders."""
    if beside:
        os.nice(10)  # the run goes first; lower still, this would take half a minute to load beside busy cores
    require_watch("cabafl watch")
    roots = [folder.expanduser() for folder in folders or [Path()]]
    for root in roots:
        if not root.is_dir() and not beside:
            raise UserError(f"{root}: not a folder; accepted: run folders, or folders that contain some")
    from cabafl.watch.serving import ServerSettings, serve

    if beside:
        os.nice(9)  # loaded: the lowest priority halves what the run loses, and answers still take a tenth of a second
    secret = _password(password)
    settings = ServerSettings(host, port, beside and not metrics_only, secret, certificate, key, insecure, metrics_only)

    def tell(opened: "Opened") -> None:
        if beside:
            print(json.dumps({"url": opened.url, "token": opened.token}), flush=True)  # noqa: T201
            return
        _tell(opened, settings.insecure)
        if open_page:
            import webbrowser

            webbrowser.open(opened.url)

    serve(roots, settings, tell)


def _tell(opened: "Opened", insecure: bool) -> None:
    """What the user has to know; the token is shown this once."""
    if opened.login_required and opened.certificate is None and insecure:
        print_notice("warning", "not encrypted: whoever sees the traffic can log in and act (--insecure)")
    console.print(f"Watch: {opened.url}", soft_wrap=True)
    if opened.certificate is not None:
        console.print(f"Certificate: {opened.certificate}", soft_wrap=True)
    if opened.token is not None:
        purpose = "to log in" if opened.login_required else "for an operator's actions"
        console.print(f"Token {purpose}, shown only now: {opened.token}", soft_wrap=True)
    console.print("Ctrl-C ends it.")


def _password(file: Path | None) -> str | None:
    """The password, if there is one; raises `UserError` if it is too short or others can read it."""
    text = os.environ.get(PASSWORD)
    name = PASSWORD
    if file is not None:
        name = f"--password-file = {file}"
        try:
            if file.stat().st_mode & 0o077:
                raise UserError(f"{name}: others can read it; accepted: a file of mode 600")
            text = file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if text is not None and len(text) < 12:
        raise UserError(f"{name}: a password of {len(text)} characters; accepted: 12 or more")
    return text


def require_watch(what: str) -> None:
    """Raises `UserError` if the extra is not installed."""
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise UserError(f"{what} needs {missing}: pip install 'cabafl[watch]'")


@contextmanager
def watching(wanted: bool, folders: Sequence[Path]) -> Iterator[None]:
    """Inside the context, if ``wanted``, a process of its own shows the folders in a browser. Its end is not waited
    for: that would take another fifth of a second."""
    if not wanted:
        yield
        return
    require_watch("--watch")
    process = _beside(["--port", str(PORT)], folders)
    try:
        yield
    finally:
        process.terminate()
        threading.Thread(target=end, args=(process,), daemon=True).start()


@contextmanager
def exposing_metrics(port: int | None, folders: Sequence[Path]) -> Iterator[None]:
    """Inside the context, if there is a ``port``, a process of its own serves ``/metrics`` there, to this machine."""
    if port is None:
        yield
        return
    require_watch("--metrics")
    from cabafl.watch.serving import ServerSettings, listen

    listen(ServerSettings(port=port)).close()  # says now if the port is busy
    process = _beside(["--port", str(port), "--metrics-only"], folders)
    try:
        yield
    finally:
        end(process)


def _beside(options: Sequence[str], folders: Sequence[Path]) -> "subprocess.Popen[bytes]":
    """Starts `cabafl watch` as a child that ends with this process, and says where it is as soon as it answers."""
    command = [sys.executable, "-P", "-m", "cabafl", "watch", "--beside", *options, "--", *map(str, folders)]
    tethered = [sys.executable, "-P", "-m", "cabafl.processes.tethered", str(os.getpid()), *command]
    # In a group of its own, so that Ctrl-C reaches this process only; in the same session, because Linux may weigh the
    # priorities of processes within a session only.
    process = subprocess.Popen(
        tethered, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
    threading.Thread(target=_announce, args=(process,), daemon=True).start()
    return process


def _announce(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
    except ValueError:
        print_notice("warning", "the page could not be started; `cabafl watch` says why")
        return
    errors.print(f"Watch: {said['url']}", soft_wrap=True)
    if said["token"] is not None:
        errors.print(f"Token for an operator's actions: {said['token']}", soft_wrap=True)
