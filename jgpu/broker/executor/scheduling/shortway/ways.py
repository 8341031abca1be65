"""Both short ways, as who reads messages knows them."""

from typing import TYPE_CHECKING

from jgpu.broker.executor.scheduling.shortway.runs import ShortRuns
from jgpu.broker.executor.scheduling.shortway.uploads import ShortUploads
from jgpu.broker.executor.scheduling.shortway.way import ShortWay

if TYPE_CHECKING:
    from jgpu.broker.executor.tallies import Tallies
    from jgpu.broker.executor.works.base import Work

__all__ = ["ShortWays"]


class ShortWays:
    """Do what they are given, if that may be done at once; else nothing has happened."""

    def __init__(self, way: ShortWay, tallies: "Tallies", works: "dict[int, Work]") -> None:
        """`works` are the driver's."""
        self._teller = way.teller
        self._feed = way.feed
        self.run = ShortRuns(way, tallies, works).run
        self.upload = ShortUploads(way).take
        #: others are heard next; returns whether what ran may stay untold till then
        self.others_heard = way.untold.others_heard
        #: whether a run of a session was done, and others are to be heard before its next one
        self.others_first = way.untold.others_first

    @property
    def is_behind(self) -> bool:
        """Whether something ran of which the core has not heard."""
        return self._teller.untold is not None

    def catch_up(self) -> None:
        """Have the core hear of it, before anything changes that is told with it."""
        if self._teller.untold is not None:
            self._teller.catch_up()
            self._feed.flush()
