"""Which address is answered by which handler, below the hub's prefix for this service."""

from collections import Counter
from typing import Any

from tornado.web import Application, StaticFileHandler

from jgpu.hub.page.actions import ChoosePolicy, DrainBroker, FreeMemory, Quotas
from jgpu.hub.page.base import Callback, PageAuth, cookie_secret
from jgpu.hub.page.broker import BrokerLink
from jgpu.hub.page.metrics.collector import MetricsSettings
from jgpu.hub.page.metrics.handlers import Metrics
from jgpu.hub.page.metrics.tally import Tally
from jgpu.hub.page.now.handlers import ChangeStream, Now
from jgpu.hub.page.people.handlers import EditQuotas, Missing, People, PeopleList
from jgpu.hub.page.record.handlers import Events, UsageList, UsageView
from jgpu.hub.page.rendering import STATIC, Renderer

__all__ = ["make_application"]


def make_application(
    auth: PageAuth, link: BrokerLink, metrics: MetricsSettings, check_s: float = 15.0
) -> Application:
    """The page below `auth.base_url`, as its visitors' browsers know it.

    `check_s`: so often an open page asks the hub again whether its visitor may still see it, and
    tells the browser that it is there.
    """
    prefix = auth.base_url
    settings: dict[str, Any] = {
        "check_s": check_s,
        "cookie_secret": cookie_secret(auth.api_token),
        "hub_auth": auth,
        "link": link,
        "metrics": metrics,
        "streams": Counter(),
        "tally": Tally(),
        "renderer": Renderer(prefix, auth.hub_prefix),
    }
    static = {"path": STATIC}
    return Application(
        [
            (prefix, Now),
            (f"{prefix}stream", ChangeStream),
            (f"{prefix}people", People),
            (f"{prefix}people.csv", PeopleList),
            (f"{prefix}people/edit", EditQuotas),
            (f"{prefix}usage", UsageView),
            (f"{prefix}usage.csv", UsageList),
            (f"{prefix}events", Events),
            (f"{prefix}sessions/([0-9]{{1,18}})/free", FreeMemory),
            (f"{prefix}quotas", Quotas),
            (f"{prefix}policy", ChoosePolicy),
            (f"{prefix}drain", DrainBroker),
            (f"{prefix}metrics", Metrics),
            (f"{prefix}oauth_callback", Callback),
            (f"{prefix}static/(.*)", StaticFileHandler, static),
            (f"{prefix}.*", Missing),
        ],
        **settings,
    )
