"""A built page loads nothing from elsewhere: the build warns of each that would.

A reader's browser asks the site alone, whatever the theme or an extension brings: no fonts, styles
or scripts of another host. Links that a reader clicks may lead anywhere.
"""

from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

__all__ = ["loaded_from_elsewhere", "setup"]

_LOG = logging.getLogger(__name__)
#: What a browser loads by itself; of `link`, what these relations name is only said.
_LOADS = {"audio", "embed", "iframe", "img", "input", "link", "object", "script", "source", "video"}
_SAID = {"author", "canonical", "help", "license", "next", "prev"}


class _Reader(HTMLParser):
    """Collects what a page's tags load from a host that they name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag not in _LOADS or (tag == "link" and said.get("rel") in _SAID):
            return
        for name in ("data", "href", "poster", "src", "srcset"):
            address = (said.get(name) or "").strip().lower()
            if address.startswith(("http:", "https:", "//")):
                self.found.append(address)


def loaded_from_elsewhere(html: str) -> list[str]:
    """Addresses on other hosts that a browser would load with this page."""
    reader = _Reader()
    reader.feed(html)
    return reader.found


def _look(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    for page in sorted(Path(app.outdir).rglob("*.html")):
        for address in loaded_from_elsewhere(page.read_text()):
            _LOG.warning("%s loads %s from another host", page.relative_to(app.outdir), address)
    for style in sorted(Path(app.outdir).rglob("*.css")):
        text = style.read_text().lower()
        if "url(http" in text or "url(//" in text or '@import "http' in text:
            _LOG.warning("%s loads from another host", style.relative_to(app.outdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Look through the pages when they are built."""
    app.connect("build-finished", _look)
    return {"parallel_read_safe": True}
