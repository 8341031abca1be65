"""Other users of this machine, for tests: uids without accounts, who can run this Python.

`opened` wraps a command so that it, and all that it starts, sees what this Python and these tests
are made of in directories that everybody may enter. That is done in a mount namespace of its own,
where a closed directory above them is covered by an empty one with nothing but them inside; nothing
changes on the machine.
"""

import os
import shlex
import stat
import sys
from pathlib import Path

import jgpu

__all__ = ["NEEDED", "as_user", "opened", "problem"]

#: what other users run: the interpreter's home, its environment, and this package
NEEDED = tuple(
    dict.fromkeys(
        Path(p).resolve() for p in (sys.base_prefix, sys.prefix, jgpu.__path__[0] + "/..")
    )
)


def problem():
    """Why nobody else can be played here; empty where they can."""
    return "" if os.geteuid() == 0 else "needs root, to have other users and their mounts"


def opened(command, *mounts):
    """The command where everybody may read `NEEDED`; `mounts`: pairs (what is there, where)."""
    lines = ["set -e", "stage=$(mktemp -d)", "mount -t tmpfs -o mode=755 jgpu-tests $stage"]
    covered, kept = {}, []
    for number, path in enumerate(NEEDED):
        if (closed := _closed(path)) is not None:
            stage = f"$stage/{number}"
            lines += [f"mkdir {stage}", f"mount --rbind {_quoted(path)} {stage}"]
            covered[closed] = None
            kept.append((stage, path))
    lines += [f"mount -t tmpfs -o mode=755 jgpu-tests {_quoted(each)}" for each in covered]
    for stage, path in kept:
        lines += [f"mkdir -p {_quoted(path)}", f"mount --rbind {stage} {_quoted(path)}"]
    for source, place in mounts:
        lines += [f"mkdir -p {_quoted(place)}", f"mount --bind {_quoted(source)} {_quoted(place)}"]
    lines += ["umount -l $stage", "rmdir $stage", 'exec "$@"']
    script = "\n".join(lines)
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command]


def as_user(uid, command, *groups):
    """The command as this user, who needs no account and has no rights, in these groups alone."""
    own = ["--groups", ",".join(groups)] if groups else ["--clear-groups"]
    return [
        *("setpriv", "--reuid", str(uid), "--regid", str(uid), *own),
        *("--inh-caps=-all", "--no-new-privs", *command),
    ]


def _closed(path):
    """The highest directory above a path that not everybody may enter."""
    above = [each for each in path.parents if not each.stat().st_mode & stat.S_IXOTH]
    return above[-1] if above else None


def _quoted(path):
    return shlex.quote(os.fspath(path))
