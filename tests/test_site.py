"""The documentation site: its navigation, its links, and the checks of `make docs`."""

import re
from pathlib import Path

import pytest

from tools.build_site import find_errors
from tools.root_links import ROOT_PAGES, in_site

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_navigation_lists_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1].split("\n\n")[0]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(re.findall(r": (\S+\.md)$", navigation, re.M)) == sorted(pages)


def test_pages_of_the_root_exist_in_the_repository_and_in_the_site() -> None:
    assert [name for name in ROOT_PAGES if not (ROOT / name).is_file()] == []
    assert [name for name in ROOT_PAGES.values() if not (DOCS / name).is_file()] == []


@pytest.mark.parametrize(
    ("on_github", "expected"),
    [
        ("docs/data.md", "data.md"),
        ("docs/cabafl.md#ablation-variants", "cabafl.md#ablation-variants"),
        ("../CHANGELOG.md", "changelog.md"),
        ("CONTRIBUTING.md#style", "contributing.md#style"),
        ("data.md", "data.md"),
        ("../data.md", "../data.md"),
        ("#style", "#style"),
        ("https://example.org/docs/data.md", "https://example.org/docs/data.md"),
    ],
)
def test_links_written_for_github_work_in_the_site(on_github: str, expected: str) -> None:
    assert in_site(on_github) == expected


def write(site: Path, **files: str) -> Path:
    for name, text in files.items():
        path = site / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
    return site


def test_a_correct_site_has_no_errors(tmp_path: Path) -> None:
    index = '<a href="other.html#there" id="top">x</a><a href="//a.example">x</a><img src="a.png"><a href="#top">x</a>'
    assert find_errors(write(tmp_path, index_html=index, other_html='<h1 id="there">x</h1>', a_png="")) == []


def test_errors_of_a_site_are_found(tmp_path: Path) -> None:
    index = '<a href="gone.html">x</a><a href="other.html#gone">x</a><script src="https://cdn.example/x.js"></script>'
    style = '@import "//fonts.example/a.css"; p { background: url(https://example.org/b.png); c: url(data:svg) }'
    write(tmp_path, index_html=index, other_html='<img src="gone.png">', site_css=style)
    assert find_errors(tmp_path) == [
        "index.html: loads https://cdn.example/x.js",
        "index.html: broken link gone.html",
        "index.html: broken link other.html#gone",
        "other.html: broken link gone.png",
        "site.css: loads //fonts.example/a.css",
        "site.css: loads https://example.org/b.png",
    ]


def test_python_example_of_the_start_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The same code with a shorter run."""
    code = (DOCS / "index.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    short = code.replace('"virtual_time": 300', '"virtual_time": 20')
    assert short != code
    exec(compile(short, "index.md", "exec"), {})
    assert "accuracy" in capsys.readouterr().out
