"""A small web server on loopback for the tests of downloads: ranges, cut connections, missing lengths."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


@dataclass
class Web:
    """What the server offers and how it misbehaves; ``requests`` is what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # bytes after which the next connections are cut
    ranges: bool = True
    etag: str = '"one"'
    lengths: bool = True  # False: chunks instead of a length, as some servers send archives
    codes: list[int] = field(default_factory=list)  # error codes of the next answers; 0: no error
    requests: list[tuple[str, str]] = field(default_factory=list)  # path, range
    stalls: list[int] = field(default_factory=list)  # bytes after which the next connections send nothing more
    resume: threading.Event = field(default_factory=threading.Event)  # ends a stall
    home: str = ""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    web: Web


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        web = self.server.web
        asked, path = self.headers.get("Range", ""), unquote(self.path)
        web.requests.append((path, asked))
        code = (web.codes.pop(0) if web.codes else 0) or (0 if path in web.files else 404)
        content = web.files.get(path, b"")
        span = re.fullmatch(r"bytes=(\d+)-", asked)
        start = int(span[1]) if span and web.ranges and self.headers.get("If-Range") == web.etag else 0
        if code or start > len(content):
            self.send_error(code or 416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if web.etag:
            self.send_header("ETag", web.etag)
        self.send_content(content[start:])

    def send_content(self, content: bytes) -> None:
        web = self.server.web
        cut = web.cuts.pop(0) if web.cuts else None
        sent = content[:cut]
        if web.lengths:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if web.stalls:
                self.wfile.write(content[: web.stalls.pop(0)])
                web.resume.wait(30)
            else:
                self.wfile.write(sent)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            end = b"0\r\n\r\n" if cut is None else b""
            self.wfile.write(f"{len(sent):x}\r\n".encode() + sent + b"\r\n" + end)
        self.close_connection = cut is not None

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[Web]:
    """A running server and what it offers."""
    server = Server(("127.0.0.1", 0), Handler)
    server.web = Web(home=f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.web
    finally:
        server.web.resume.set()
        server.shutdown()
        thread.join()
        server.server_close()
