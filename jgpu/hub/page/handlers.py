"""The view "People", and what answers everywhere else."""

from collections.abc import Callable
from urllib.parse import urlencode

from tornado.web import HTTPError

from jgpu.errors import JgpuError
from jgpu.hub.page.base import Base
from jgpu.hub.page.people import Choice, people_values

__all__ = ["Missing", "People", "choice_of"]


class People(Base):
    """Who may have what, and what they used of it."""

    async def get(self) -> None:
        """All rows, or those that were asked for; the table alone for the page's own script."""
        try:
            quotas = await self.link.quotas()
        except JgpuError as error:
            raise HTTPError(503, "%s", str(error)) from None
        choice = choice_of(self)
        values = people_values(self.visitor, quotas, self.link.report, self.link.members, choice)
        template = "people_table.html" if self.is_fragment else "people.html"
        self.page(
            template, link_to=lambda **other: "?" + urlencode(choice.query(**other)), **values
        )


class Missing(Base):
    """There is nothing here."""

    async def get(self) -> None:
        """Say so, to whom the hub knows."""
        raise HTTPError(404, "There is no such view.")


def _links(choice: Choice) -> Callable[..., str]:
    """Makes addresses of the same rows in another order."""
    return lambda **other: "?" + urlencode(choice.query(**other))


def choice_of(handler: Base) -> Choice:
    """What an address says about rows and their order."""
    return Choice(
        text=handler.get_query_argument("q", "").strip(),
        group=handler.get_query_argument("group", ""),
        sort=handler.get_query_argument("sort", "name"),
        descending=handler.get_query_argument("desc", "") == "1",
    )
