"""What visitors may do: free a session's memory, set quotas, choose the policy, drain.

Every right is checked here, by the hub's answer to this request and the broker's of now: over the
administrators' socket the broker itself refuses nothing that the page asks.
"""

import logging
import time
from html import escape
from http import HTTPStatus
from typing import Any, Final

from msgspec.structs import replace
from tornado.web import HTTPError

from jgpu.errors import JgpuError
from jgpu.hub.page.base import Base
from jgpu.hub.page.people.classlist import MOST_BYTES, BadCell, ClassLine, read_list
from jgpu.hub.page.people.settings import FIELDS, ScopeSetting, check_rights, moment_of
from jgpu.wire.messages import Done, Drain, Evict, QuotasAre, SetQuota, UsePolicy
from jgpu.wire.reports.report import decode_quotas
from jgpu.wire.sizes import short_size

__all__ = ["ChoosePolicy", "ClassList", "DrainBroker", "FreeMemory", "Quotas"]

_LOG = logging.getLogger("jgpu.hub.page")
#: what is said of several people at once names the first few
_NAMED: Final = 3


class _Action(Base):
    """Something is done, and the visitor told what."""

    #: where they are afterwards, without the page's script
    back = ""

    async def tell(self, message: Any) -> Any:
        """Ask the broker on the visitor's behalf; its no is theirs, with its sentence."""
        try:
            return await self.link.ask(message)
        except JgpuError as error:
            raise HTTPError(409, "%s", str(error)) from None

    def done(self, text: str) -> None:
        """Say what was done."""
        _LOG.info("%s: %s", self.visitor.name, text)
        if self.is_fragment:
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            self.set_header("HX-Trigger", "jgpu-done")
            self.finish(escape(text))
        else:
            self.redirect(self.settings["hub_auth"].base_url + self.back, status=303)

    def forbid(self, sentence: str) -> None:
        """It is not theirs to do."""
        raise HTTPError(403, "%s", sentence)


class FreeMemory(_Action):
    """Have what a session keeps on the device make way for others."""

    async def post(self, number: str) -> None:
        """Of one's own session, or of one whose user one steers."""
        rows = self.link.report.sessions if self.link.report else ()
        session = next((row for row in rows if row.id == int(number)), None)
        if session is None:
            raise HTTPError(404, "There is no such session any more.")
        if not self.visitor.frees(session.user, self.link.members.get(session.user, ())):
            self.forbid("This is another user's session, so its memory is not yours to free.")
        reply = await self.tell(
            Evict(session.id, self.get_body_argument("ephemeral", "") != "1", by=self.visitor.name)
        )
        self.done(reply.text if isinstance(reply, Done) else "")


class ChoosePolicy(_Action):
    """Another scheduling policy."""

    async def post(self) -> None:
        """For administrators."""
        if not self.visitor.administers:
            self.forbid("Only an administrator chooses the policy.")
        reply = await self.tell(UsePolicy(self.get_body_argument("policy"), by=self.visitor.name))
        self.done(reply.text if isinstance(reply, Done) else "")


class DrainBroker(_Action):
    """Have no iteration begin any more, or again."""

    async def post(self) -> None:
        """For administrators."""
        if not self.visitor.administers:
            self.forbid("Only an administrator drains the broker.")
        on = self.get_body_argument("on") == "1"
        reply = await self.tell(Drain(on, by=self.visitor.name))
        self.done(reply.text if isinstance(reply, Done) else "")


class _Setting(_Action):
    """Something is set of scopes: all of it, or nothing."""

    back = "people"

    async def apply(self, settings: list[ScopeSetting], *, new: bool) -> str:
        """Have the broker try everything, then do it; what is worth saying of it."""
        try:
            await self.link.quotas()  # who is in which group, as the broker knows now
        except JgpuError as error:
            raise HTTPError(503, "%s", str(error)) from None
        members = self.link.members
        try:
            check_rights(self.visitor, [each.scope for each in settings], members)
        except JgpuError as error:
            self.forbid(str(error))
        messages = [
            (place, SetQuota(each.scope, items, new, until=end, by=self.visitor.name))
            for place, each in enumerate(settings)
            for items, end in each.parts
        ]
        for place, message in messages:
            await self.tried(place, message)
        notes: list[str] = []
        for _, message in messages:
            reply = await self.tell(message)
            if isinstance(reply, QuotasAre):
                notes += decode_quotas(reply.json).notes  # of users whom this concerned
        self.link.forget_quotas()
        scopes = [each.scope for each in settings]
        named = ", ".join(scopes[:_NAMED]) + (", …" if len(scopes) > _NAMED else "")
        return " ".join([f"Set: {named} ({len(scopes)}).", *dict.fromkeys(notes)][: _NAMED + 1])

    async def tried(self, place: int, message: SetQuota) -> None:
        """Have the broker say whether it would take this, a part of the setting at this place."""
        await self.tell(replace(message, trial=True))


class Quotas(_Setting):
    """What is said of one scope, or of several alike."""

    async def post(self) -> None:
        """Fields that are different from what the form began with."""
        scopes = list(dict.fromkeys(self.get_body_arguments("scope")))
        if not scopes:
            raise HTTPError(400, "Nobody is chosen.")
        values = {
            name: text
            for name in FIELDS
            if (text := self.get_body_argument(name, "").strip())
            != self.get_body_argument(f"was_{name}", "").strip()
        }
        if self.get_body_argument("clear", ""):
            values = {}
        elif not values:
            values = self._as_before()
        try:
            until = moment_of(self.get_body_argument("until", ""), time.time())
        except JgpuError as error:
            raise HTTPError(400, "%s", str(error)) from None
        new = self.get_body_argument("new", "") == "1"
        self.done(await self.apply([ScopeSetting(each, values, until) for each in scopes], new=new))

    def _as_before(self) -> dict[str, str]:
        """What was set already, if it is to count for another time from now on."""
        values = {
            name: text for name in FIELDS if (text := self.get_body_argument(name, "").strip())
        }
        if not values or not self.get_body_argument("until", "").strip():
            raise HTTPError(400, "Nothing is different from before.")
        return values


class ClassList(_Setting):
    """A class list: people and what is said of each."""

    _lines: list[ClassLine]

    async def post(self) -> None:
        """All rows, or none; read only from those who may set anything of anybody."""
        if not (self.visitor.administers or self.visitor.tutors):
            self.forbid("You may not set what others may have.")
        files = self.request.files.get("list", [])
        if not files:
            raise HTTPError(400, "No file is chosen.")
        if len(files[0].body) > MOST_BYTES:
            most = short_size(MOST_BYTES)
            raise HTTPError(413, f"A class list has at most {most}. Nothing was changed.")
        try:
            lines = read_list(files[0].body.decode("utf-8"), time.time())
        except UnicodeDecodeError:
            raise HTTPError(400, "The file is no text in UTF-8. Nothing was changed.") from None
        except JgpuError as error:
            raise HTTPError(400, "%s", str(error)) from None
        if not lines:
            raise HTTPError(400, "The list sets nothing. Nothing was changed.")
        self._lines = lines
        new = self.get_body_argument("new", "") == "1"
        self.done(await self.apply([line.setting for line in lines], new=new))

    async def tried(self, place: int, message: SetQuota) -> None:
        """Say in which cell it is that the broker does not take."""
        try:
            await self.link.ask(replace(message, trial=True))
        except JgpuError as error:
            line = self._lines[place].number
            column = await self._refused_column(message)
            raise HTTPError(
                HTTPStatus.BAD_REQUEST, "%s", str(BadCell(line, column, str(error)))
            ) from None

    async def _refused_column(self, message: SetQuota) -> str:
        """The first field that is not taken by itself; the user's where all are."""
        for item in message.settings:
            try:
                await self.link.ask(replace(message, settings=(item,), trial=True, new=True))
            except JgpuError:
                return item[0]
        return "user" if not message.new else message.settings[-1][0]
