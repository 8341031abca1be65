"""What all of the page's handlers have in common: who asks, what they may, and how a no looks.

Each request is judged by the hub's answer of the moment; nothing is remembered. What a visitor may
not do is a 403 with a sentence. Only a person's own navigation leads to the hub's login, so a token
that was revoked never sends a program around in a circle.

Invariant: nothing that changes anything answers to GET, or without the proof (`_xsrf`) that the
form came from this page.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable
from html import escape
from http import HTTPStatus
from typing import Any, Final

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import Finish, HTTPError, RequestHandler

from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.rendering import Renderer
from jgpu.hub.page.visitors import Visitor, visitor_of

__all__ = ["Base", "Callback", "PageAuth", "cookie_secret"]

_HUB_SILENT: Final = (
    "The hub does not answer, so this page cannot tell who you are. Notebooks and their cells run "
    "on. Load the page again in a moment."
)
_NOT_KNOWN: Final = (
    "The hub does not accept this page's own token any more. The page's administrator sets a new "
    "one; nothing that runs on the GPU is affected."
)
#: path and name of each view
_PAGES: Final = (
    ("", "Now"),
    ("people", "People"),
    ("usage", "Usage"),
    ("events", "Events"),
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)


class PageAuth(HubOAuth):
    """Asks the hub each time: a right that was taken away ends with the next request."""

    async def _check_hub_authorization(
        self, url: str, api_token: str, cache_key: str | None = None, use_cache: bool = True
    ) -> Any:
        return await super()._check_hub_authorization(url, api_token, cache_key, use_cache=False)


def cookie_secret(token: str) -> bytes:
    """What signs cookies: the same as long as the page's token is, so a restart logs nobody out."""
    return hashlib.sha256(b"jgpu hub page cookies " + token.encode()).digest()


class Base(HubOAuthenticated, RequestHandler):
    """A handler that knows its visitor."""

    visitor: Visitor

    @property
    def link(self) -> BrokerLink:
        """The broker."""
        link: BrokerLink = self.settings["link"]
        return link

    @property
    def renderer(self) -> Renderer:
        """Templates."""
        renderer: Renderer = self.settings["renderer"]
        return renderer

    @property
    def is_fragment(self) -> bool:
        """Whether the page's own script asks, for a part of the page."""
        return self.request.headers.get("HX-Request") == "true"

    def initialize(self) -> None:
        """Tornado's, before each request."""
        self.hub_auth = self.settings["hub_auth"]

    def set_default_headers(self) -> None:
        """Nothing comes from elsewhere, and nothing is kept by anybody."""
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Find out who it is, before anything is answered."""
        visitor = await self.identify()
        if visitor is None:
            self._send_away()
            raise Finish
        if self.request.method not in ("GET", "HEAD"):
            self.check_xsrf_cookie()
        self.visitor = visitor

    async def identify(self) -> Visitor | None:
        """Who asks, by the hub's answer of now; None for whom it does not know.

        Raises 403 for those who may not use the page, and 503 where the hub does not answer.
        """
        for name in ("_cached_hub_user", "_hub_auth_user_cache"):
            self.__dict__.pop(name, None)
        try:
            model = await self.hub_auth.get_user(self, sync=False)
        except HTTPError as error:
            if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            raise HTTPError(503, _HUB_SILENT) from None
        self._hub_auth_user_cache = model
        if model is None:
            return None
        if not self.hub_auth.check_scopes(self.hub_scopes, model):
            raise HTTPError(403, "You may not use this page. The hub's administrator decides that.")
        return visitor_of(model)

    def _send_away(self) -> None:
        """To the hub's login, or with a no where nobody is there to log in."""
        person = not (self.is_fragment or self.request.headers.get("Authorization"))
        if self.request.method == "GET" and person and self._navigates():
            self.redirect(self.get_login_url())
            return
        self.send_error(
            403, reason_text="The hub does not know you, or not any more. Log in again."
        )

    def _navigates(self) -> bool:
        mode = self.request.headers.get("Sec-Fetch-Mode", "navigate")
        return mode == "navigate" and "text/html" in self.request.headers.get("Accept", "text/html")

    # -- answers -----------------------------------------------------------------------------

    def page(self, template: str, **values: Any) -> None:
        """A whole page for the visitor."""
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        common = {
            "visitor": self.visitor,
            "xsrf": self.xsrf_token.decode(),
            "problem": self.link.problem,
            "pages": _PAGES,
        }
        self.write(self.renderer.render(template, **common | values))

    def send_csv(self, name: str, lines: Iterable[str]) -> None:
        """A file for a spreadsheet."""
        day = time.strftime("%Y-%m-%d")
        self.set_header("Content-Type", "text/csv; charset=UTF-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}-{day}.csv"')
        self.finish("".join(lines))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A sentence: for people in a page, for programs alone."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        text = kwargs.get("reason_text", "")
        if isinstance(error, HTTPError) and error.log_message:
            text = error.log_message % error.args if error.args else error.log_message
        text = text or f"{HTTPStatus(status_code).phrase}."
        if self.is_fragment:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.set_header("HX-Retarget", "#told")
            self.set_header("HX-Reswap", "innerHTML")
            self.finish(f'<span class="error">{escape(text)}</span>')
        elif not self._navigates():
            self.set_header("Content-Type", "text/plain; charset=UTF-8")
            self.finish(text)
        else:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.finish(self.renderer.render("error.html", status=status_code, text=text))


class Callback(Base, HubOAuthCallbackHandler):
    """Where the hub sends a person back who has logged in."""

    async def prepare(self) -> None:
        """Who it is, is only about to be found out."""

    async def get(self) -> None:
        """Take the hub's code; a page that the hub does not know says so, and sends nobody back."""
        try:
            async with asyncio.timeout(30.0):
                await HubOAuthCallbackHandler.get(self)
        except HTTPError as error:
            if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            if "connect" in str(error.log_message) or error.status_code == HTTPStatus.BAD_GATEWAY:
                raise HTTPError(503, _HUB_SILENT) from None
            raise HTTPError(403, _NOT_KNOWN) from None
