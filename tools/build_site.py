"""Builds the documentation site and treats every warning as an error: `make docs`.

Zensical's strict mode checks the sources of the pages only. This program also fails on warnings about docstrings, on
broken links in the built pages (included pages among them), and on pages that load something from the network.
"""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
LOADED = {("img", "src"), ("script", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}
IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
NOT_FOUND = "404.html"  # a web server shows it at any address, so its links are absolute


@dataclass
class Page:
    """The anchors of a page, its links, and the files that a browser loads with it."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.page.anchors.add(value)
            elif name in ("href", "src") and value:
                self.page.links.append(value)
                if (tag, name) in LOADED:
                    self.page.loaded.append(value)


def read_page(text: str) -> Page:
    """Parses an HTML page."""
    reader = _Reader()
    reader.feed(text)
    return reader.page


def is_external(address: str) -> bool:
    """Whether the address names a host."""
    return bool(urlsplit(address).netloc)


def find_errors(site: Path) -> list[str]:
    """Broken links and anchors, and files that a page would load from the network; one line each."""
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    errors = []
    for path, page in pages.items():
        name = path.relative_to(site)
        errors += [f"{name}: loads {address}" for address in page.loaded if is_external(address)]
        if path.name != NOT_FOUND:
            errors += [f"{name}: broken link {link}" for link in page.links if not _exists(pages, path, link)]
    for path in sorted(site.rglob("*.css")):
        loaded = IN_STYLE.findall(path.read_text(encoding="utf-8"))
        errors += [f"{path.relative_to(site)}: loads {address}" for address in loaded]
    return errors


def _exists(pages: dict[Path, Page], path: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # external links are not checked
    target = Path(path.parent, unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


def build() -> list[str]:
    """Runs Zensical and returns its errors and its warnings about docstrings."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    sys.stdout.write(done.stdout)
    warnings = [line for line in done.stdout.splitlines() if line.startswith(("griffe:", "mkdocstrings:"))]
    return warnings or ([f"zensical: exit code {done.returncode}"] if done.returncode else [])


def main() -> int:
    """Builds and checks the site; returns the exit code."""
    errors = build() or find_errors(SITE.resolve())
    sys.stderr.writelines(f"{error}\n" for error in errors)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
