"""The view "People", as a page and as a class list, and what answers everywhere else."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError

from jgpu.errors import JgpuError
from jgpu.hub.page.actions import ClassList
from jgpu.hub.page.base import Base
from jgpu.hub.page.people.classlist import write_list
from jgpu.hub.page.people.editing import edit_of
from jgpu.hub.page.people.settings import check_rights
from jgpu.hub.page.people.values import Option, people_values
from jgpu.hub.page.views import quotas_for
from jgpu.wire.reports.report import QuotasReport

__all__ = ["EditQuotas", "Missing", "People", "PeopleList"]


class People(Base):
    """Who may have what, and what they used of it."""

    async def get(self) -> None:
        """All rows, or those that were asked for; the table alone for the page's own script."""
        choice = _choice_of(self)
        values = await _people(self, choice)
        template = "people_table.html" if self.is_fragment else "people.html"
        self.page(template, link_to=_links(choice), **values)


class PeopleList(ClassList):
    """The same rows as a class list; set as a list says, with POST."""

    async def get(self) -> None:
        """A CSV that can be sent back."""
        values = await _people(self, _choice_of(self))
        shown = quotas_for(self.visitor, await quotas_of(self), self.link.members)
        lines = write_list([person.standing for person in values["people"]], shown.scopes)
        self.send_csv("jgpu-people", lines)


class EditQuotas(Base):
    """The form of what is said of a scope, or of several."""

    async def get(self) -> None:
        """With what is said now; changes nothing."""
        scopes = list(dict.fromkeys(self.get_query_arguments("scope")))
        if not scopes:
            raise HTTPError(400, "Nobody is chosen.")
        quotas = await quotas_of(self)
        try:
            check_rights(self.visitor, scopes, self.link.members)
        except JgpuError as error:
            raise HTTPError(403, "%s", str(error)) from None
        self.page(
            "edit_part.html" if self.is_fragment else "edit.html",
            edit=edit_of(scopes, quotas),
            row=self.get_query_argument("row", "") == "1",
        )


class Missing(Base):
    """There is nothing here."""

    async def get(self) -> None:
        """Say so, to whom the hub knows."""
        raise HTTPError(404, "There is no such view.")


async def quotas_of(handler: Base) -> QuotasReport:
    """What the broker says of everybody."""
    try:
        return await handler.link.quotas()
    except JgpuError as error:
        raise HTTPError(503, "%s", str(error)) from None


async def _people(handler: Base, choice: Option) -> dict[str, Any]:
    link = handler.link
    quotas = await quotas_of(handler)
    return people_values(handler.visitor, quotas, link.report, link.members, choice)


def _choice_of(handler: Base) -> Option:
    """What an address says about rows and their order."""
    return Option(
        text=handler.get_query_argument("q", "").strip(),
        group=handler.get_query_argument("group", ""),
        sort=handler.get_query_argument("sort", "name"),
        descending=handler.get_query_argument("desc", "") == "1",
    )


def _links(choice: Option) -> Callable[..., str]:
    """Makes addresses of the same rows in another order."""
    return lambda **other: "?" + urlencode(choice.query(**other))
