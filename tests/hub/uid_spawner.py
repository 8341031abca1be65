"""A hub's spawner whose users have uids of their own, without accounts on this machine."""

import grp
import os
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner

__all__ = ["GROUP", "HOMES", "UidSpawner", "uid_of"]

#: of this machine; who may use the broker
GROUP = "users"
HOMES = "TESTS_HOMES"
_FIRST_UID = 20000


def uid_of(spawner):
    """user7 is 20007."""
    return _FIRST_UID + int(spawner.user.name.removeprefix("user"))


class UidSpawner(LocalProcessSpawner):
    """As a system's own users, but for the accounts."""

    @property
    def home(self):
        """Where this user's files are."""
        return Path(os.environ[HOMES], self.user.name)

    def user_env(self, env):
        """What an account would say."""
        return env | {"USER": self.user.name, "HOME": str(self.home), "SHELL": "/bin/sh"}

    def make_preexec_fn(self, name):
        """Become the user."""
        uid, home = uid_of(self), self.home
        group = grp.getgrnam(GROUP).gr_gid

        def become():
            home.mkdir(mode=0o700, exist_ok=True)
            os.chown(home, uid, uid)
            os.setgroups([group])
            os.setgid(uid)
            os.setuid(uid)
            os.chdir(home)

        return become
