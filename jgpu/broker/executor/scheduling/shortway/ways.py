"""Both short ways, as who reads messages knows them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from jgpu.broker.executor.scheduling.shortway.runs import ShortRuns
from jgpu.broker.executor.scheduling.shortway.uploads import ShortUploads
from jgpu.broker.executor.scheduling.shortway.way import ShortWay
from jgpu.sched import Core, events

if TYPE_CHECKING:
    from jgpu.broker.executor.devices.base import Device
    from jgpu.broker.executor.scheduling.feed import LaneFeed
    from jgpu.broker.executor.scheduling.forecast import Forecast
    from jgpu.broker.executor.scheduling.telling import CoreTeller
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.tallies import Tallies
    from jgpu.broker.executor.works.base import Work

__all__ = ["ShortWays"]


class ShortWays:
    """Do what they are given, if that may be done at once; else nothing has happened."""

    def __init__(
        self,
        device: "Device",
        core: Core,
        clock: Callable[[], float],
        teller: "CoreTeller",
        feed: "LaneFeed",
        tallies: "Tallies",
        works: "dict[int, Work]",
        forecasts: "dict[int, Forecast]",
        measured: "Callable[[ExecutorSession], events.MemoryMeasured | None]",
    ) -> None:
        """`works` and `forecasts` are the driver's; `measured` is what is new of memory."""
        way = ShortWay(device, core, clock, teller, feed, forecasts, measured)
        self._teller = teller
        self._feed = feed
        self.run = ShortRuns(way, tallies, works).run
        self.upload = ShortUploads(way).take
        #: others are heard next; returns whether what ran may stay untold till then
        self.others_heard = way.untold.others_heard

    @property
    def is_behind(self) -> bool:
        """Whether something ran of which the core has not heard."""
        return self._teller.untold is not None

    def catch_up(self) -> None:
        """Have the core hear of it, before anything changes that is told with it."""
        if self._teller.untold is not None:
            self._teller.catch_up()
            self._feed.flush()
