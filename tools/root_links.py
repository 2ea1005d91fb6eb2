"""Links that work on GitHub and in the site, where pages of the repository's root have names of their own.

A page of the root names its targets from there (``docs/data.md``), a page of ``docs/`` names a page of the root with
``../CHANGELOG.md``. In the site both live side by side.
"""

from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "vulnerabilities.md",
}


def in_site(target: str) -> str:
    """The target of a link, as seen from a page directly under ``docs/``."""
    path, hash_, anchor = target.partition("#")
    path = ROOT_PAGES.get(path.removeprefix("../"), path.removeprefix("docs/"))
    return path + hash_ + anchor


class RootLinks(Treeprocessor):
    """Puts the links and pictures of a page right."""

    def run(self, root: Element) -> None:
        """Before relative links are turned into addresses of the site."""
        for element in root.iter():
            for attribute in ("href", "src"):
                if attribute in element.attrib:
                    element.set(attribute, in_site(element.attrib[attribute]))


class RootLinksExtension(Extension):
    """For ``markdown_extensions`` of ``mkdocs.yml``."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """After inline syntax (priority 20), before relative links (0)."""
        md.treeprocessors.register(RootLinks(md), "root_links", 10)
