"""Which servers' sockets are of servers that are no more: their spawner crashed, or the hub did.

Invariant: a server that this hub starts or holds to be running keeps its socket, and so does
whatever belongs to users whom it does not know; another hub of the host may.
"""

from collections.abc import Iterable
from typing import Any

__all__ = ["orphans", "server_name"]


def server_name(user: str, server: str) -> str:
    """A server's name at the broker, unique in its hub; neither part has a slash."""
    return f"{user}/{server}"


def orphans(sockets: Iterable[str], hub: Any) -> list[str]:
    """Those of these servers that a hub knows to be gone; `hub` is a session of its database.

    A server that is being started is in there before its spawner's hooks are called.
    """
    from jupyterhub import orm

    users = {name for (name,) in hub.query(orm.User.name)}
    known = hub.query(orm.User.name, orm.Spawner.name).join(
        orm.Spawner, orm.Spawner.user_id == orm.User.id
    )
    alive = {
        server_name(user, server)
        for user, server in known.filter(orm.Spawner.server_id.isnot(None))
    }
    return [name for name in sockets if name not in alive and name.partition("/")[0] in users]
