"""A Markdown extension that translates links written for GitHub to links of the site.

On GitHub, ``README.md`` and other pages in the root link to ``docs/data.md``, and pages in ``docs/`` link to
``../CHANGELOG.md``. In the site all pages are in one folder, and the pages of the root have other names (`ROOT_PAGES`).
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
    """The target of a link, relative to ``docs/``."""
    path, hash_, anchor = target.partition("#")
    path = ROOT_PAGES.get(path.removeprefix("../"), path.removeprefix("docs/"))
    return path + hash_ + anchor


class RootLinks(Treeprocessor):
    """Translates the links and image sources of a page."""

    def run(self, root: Element) -> None:
        """Called by Markdown with the root element of a page."""
        for element in root.iter():
            for attribute in ("href", "src"):
                if attribute in element.attrib:
                    element.set(attribute, in_site(element.attrib[attribute]))


class RootLinksExtension(Extension):
    """For ``markdown_extensions`` of ``mkdocs.yml``."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Registers the translation to run after inline syntax (priority 20) and before relative links (0)."""
        md.treeprocessors.register(RootLinks(md), "root_links", 10)
