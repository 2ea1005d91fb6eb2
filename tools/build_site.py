"""Builds the documentation site and accepts no warning: `make docs`.

Zensical's strict mode reads the sources of the pages: it knows neither the links of included pages nor complaints about
docstrings, nor what a page would load from the network. These are looked for here, links in the built pages.
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
ABSENT = "404.html"  # shown under any address, so its links are those of a web server


@dataclass
class Page:
    """What a page offers and what it asks for."""

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
    """Anchors, links and loaded files of an HTML page."""
    reader = _Reader()
    reader.feed(text)
    return reader.page


def is_outside(address: str) -> bool:
    """Whether it needs the network."""
    return bool(urlsplit(address).netloc)


def find_faults(site: Path) -> list[str]:
    """Links and anchors that lead nowhere, and files that would be loaded from the network."""
    pages = {path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site)
        faults += [f"{name}: loads {address}" for address in page.loaded if is_outside(address)]
        if path.name != ABSENT:
            faults += [f"{name}: {link} leads nowhere" for link in page.links if not _leads(pages, path, link)]
    for path in sorted(site.rglob("*.css")):
        loaded = IN_STYLE.findall(path.read_text(encoding="utf-8"))
        faults += [f"{path.relative_to(site)}: loads {address}" for address in loaded]
    return faults


def _leads(pages: dict[Path, Page], path: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # somebody else's page
    target = Path(path.parent, unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


def build() -> list[str]:
    """Runs Zensical; its complaints, those about docstrings included."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    sys.stdout.write(done.stdout)
    said = [line for line in done.stdout.splitlines() if line.startswith(("griffe:", "mkdocstrings:"))]
    return said or ([f"zensical ended with {done.returncode}"] if done.returncode else [])


def main() -> int:
    """0 if the site is built and sound."""
    faults = build() or find_faults(SITE.resolve())
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
