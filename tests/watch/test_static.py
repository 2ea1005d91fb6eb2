"""The files of the page: ours alone, no markup from text, nothing from elsewhere, complete in the package."""

import re
from pathlib import Path

import pytest

import cabafl

STATIC = Path(cabafl.__file__).parent / "watch" / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
STYLES = sorted(STATIC.glob("*.css"))
OWN = [*SCRIPTS, *STYLES, STATIC / "index.html"]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser")
CODE = re.compile(r"\beval\(|new Function|setTimeout\(['\"`]|javascript:")
ELSEWHERE = re.compile(r"(?:https?:)?//[\w-]+\.\w")


def name_of(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", OWN, ids=name_of)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert MARKUP.findall(text) == []
    assert CODE.findall(text) == []
    assert ELSEWHERE.findall(text.replace("http://www.w3.org/2000/svg", "")) == []  # a name, not an address


@pytest.mark.parametrize("path", [*SCRIPTS, *STYLES], ids=name_of)
def test_files_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 120


def test_every_import_is_there() -> None:
    found = 0
    for path in SCRIPTS:
        text = path.read_text(encoding="utf-8")
        for names, file in re.findall(r'^import (.+?) from "\./([^"]+)";', text, re.M | re.S):
            exported = (STATIC / file).read_text(encoding="utf-8")
            if "vendor" not in file and "*" not in names:
                for name in re.findall(r"\w+", names):
                    assert re.search(rf"^export (async )?(const|class|function) {name}\b", exported, re.M), (path, name)
            found += 1
    assert found > 50


def test_the_start_page_has_no_script_or_style_of_its_own() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert "<style" not in text
    assert re.findall(r"\s(?:on\w+|style)=", text) == []
    for address in re.findall(r'(?:src|href)="/static/([^"]+)"', text):
        assert (STATIC / address).is_file()


def test_the_chart_library_has_its_licence_and_version() -> None:
    vendor = STATIC / "vendor"
    version = re.search(r"\(v([\d.]+)\)", (vendor / "uPlot.esm.js").read_text(encoding="utf-8"))
    assert version is not None
    assert version[1] in (vendor / "README.md").read_text(encoding="utf-8")
    assert "MIT" in (vendor / "LICENSE").read_text(encoding="utf-8")
