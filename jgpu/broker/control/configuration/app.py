"""`jgpu broker`: the administrator's side, traitlets in, `BrokerSettings` out.

Settings come from the command line, then from files (`configfiles`).
The working directory is not looked into: a configuration is code, and anybody may have left one
there.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from traitlets import Bool, Dict, Enum, Int, List, TraitError, Unicode, default
from traitlets.config import catch_config_error

from jgpu import __version__
from jgpu.broker.control.configuration.configfiles import FromFiles
from jgpu.broker.control.configuration.settings import DEVICES, BrokerSettings
from jgpu.broker.control.configuration.units import Bytes, Seconds
from jgpu.broker.control.executors.watchdog import Patience
from jgpu.broker.control.quotas.configured import quota_settings
from jgpu.broker.control.serving import prepare_process, serve
from jgpu.broker.settings import ExecutorSettings
from jgpu.broker.systemd import unit_text
from jgpu.errors import ConfigError
from jgpu.wire.address import (
    ADDRESS,
    SYSTEM_SOCKET,
    admin_socket,
    make_directory,
    parse,
    user_directory,
    user_socket,
)

__all__ = ["JgpuBroker", "launch"]

_SYSTEM_SPOOL: Final = Path("/var/lib/jgpu")
_PRIVATE_IDLE_S: Final = 600.0
#: one such part of the host's memory may hold what is spilled
_HOST_PART: Final = 8


class JgpuBroker(FromFiles):
    """Settings of one broker, and the three things that `jgpu broker` can do with them."""

    name = "jgpu broker"
    version = __version__
    description = Unicode(
        """Share this host's GPU between the notebooks of its users.

        One broker serves all users of a host (started by systemd, see --systemd-unit), or one user
        alone (--private; kernels start such a one by themselves where no other answers).
        """
    )
    # What follows a user's command line is read by people, at the level they ask for.
    log_format = Unicode("[%(levelname)1.1s %(asctime)s.%(msecs).03d %(name)s] %(message)s").tag(
        config=True
    )

    # -- what is shared ----------------------------------------------------------------------

    device = Enum(
        DEVICES,
        "auto",
        help="""What the notebooks' "cuda" runs on. "auto" tries the GPU and, should its self-test
        fail, says so and serves from the CPU; "cuda" insists on the GPU; "cpu" runs the same
        programs with torch's CPU kernels; "null" computes nothing and is for tests, and so is
        "cuda-on-host": a CUDA in everything but the speed, without a GPU.""",
    ).tag(config=True)
    null_poses_as = Enum(
        ("null", "cpu", "cuda"),
        "null",
        help="""For tests: what a device "null" says it is, so that notebooks record what they would
        record for a GPU. It computes nothing all the same.""",
    ).tag(config=True)
    gpu = Int(
        0,
        min=0,
        help="Which GPU, counted as nvidia-smi counts (or within CUDA_VISIBLE_DEVICES).",
    ).tag(config=True)
    claims_gpu = Bool(True, help="False: other brokers may have the GPU, too. For tests.")
    claims_gpu.tag(config=True)
    memory = Bytes(
        0,
        help="""How much memory all notebooks together may use on the device, in bytes or with a
        unit: "6G", "512M". 0 takes what the device has, less a margin. On the CPU this is counted,
        not walled: what torch's kernels need inside one op comes on top.""",
    ).tag(config=True)
    lanes = Int(
        2,
        min=1,
        max=64,
        help="""Most lanes open at once. Sessions in one lane take turns; lanes run side by side.
        More lanes fill a GPU better with small models and make each cell less predictable. A GPU
        has at most 14: of torch's 32 streams 16 are kept for lanes whose op does not end.""",
    ).tag(config=True)
    threads = Int(
        0, min=0, help="CPU threads of one lane (device cpu). 0: this host's cores / lanes."
    ).tag(config=True)
    policy = Unicode(
        "fair",
        help="""Whose turn it is; `jgpu policy` changes it live. "fair" gives users with work equal
        shares of device time, however many notebooks each of them has. "las" serves whoever was
        served least, so that short jobs pass long ones; "srtf" whose loops will be over soonest;
        "pack" is fair in as many lanes as were seen to be worth it; "priority" puts interactive
        before normal before batch work; "fifo" lets the first come finish first.""",
    ).tag(config=True)
    host_pool = Bytes(
        help="""How much of the host's memory may hold what idle notebooks keep on the device while
        others need the room ("8G"); more goes to a file in `spool`. Default: an eighth of the
        host's memory.""",
    ).tag(config=True)
    spill_after = Seconds(
        0.0,
        help="""Seconds without work ("10m") after which what a notebook keeps on the device beside
        its model goes to the host, though nobody waits for it; 0: only when somebody does. It
        comes back by itself.""",
    ).tag(config=True)
    evict_after = Seconds(
        0.0,
        help="""The same with its model. Nothing else but `jgpu evict` ever moves a model.""",
    ).tag(config=True)
    record = Unicode(
        "",
        help="""File for a recording of what the scheduler is told (times, sizes, users' names; no
        data), to be played again by `jgpu simulate replay`. Begins anew with each start.""",
    ).tag(config=True)

    # -- who may use it ----------------------------------------------------------------------

    socket_path = Unicode(
        help=f"""Path of the Unix socket that notebooks connect to, at most 107 bytes. Default: what
        {ADDRESS} names, as for every other command; else {SYSTEM_SOCKET} for root, and the
        user's own, where that user's kernels look for it, for everybody else and with --private.
        Its directory must belong to the broker's user or root, and not be writable by others.""",
    ).tag(config=True)
    group = Unicode(
        "",
        help="""Unix group whose members may connect; the socket then has mode 0660, else 0600.
        The broker's user must be a member or root.""",
    ).tag(config=True)
    admin_socket_path = Unicode(
        help="""Path of the Unix socket for administrators: who may connect there sees all users'
        names and notebooks in `jgpu status`, changes quotas live (`jgpu quota set`), chooses the
        policy (`jgpu policy`), has any notebook's memory make way (`jgpu evict`) and is believed
        when it speaks for a user (`jgpu run --user`). Nobody is an administrator at the other
        socket, root neither, for root in a container is root there as well. Default: admin.sock
        beside the other socket. A private broker has one socket, and its owner administers.""",
    ).tag(config=True)
    admin_group = Unicode(
        "",
        help="""Unix group whose members are administrators besides root and the broker's own user.
        The broker's user must be a member or root.""",
    ).tag(config=True)
    private = Bool(
        False,
        help="""A broker for one user alone, started by a kernel or `jgpu run`. It outlives the
        terminal and ends by itself when unused (see idle_exit). Its files are in that user's
        folders, root's too; where the system's jgpu_config.py puts files is not for it.""",
    ).tag(config=True)
    idle_exit = Seconds(
        help="""End after so long without kernels and sessions, in seconds or as "15m", "2h"; 0
        means never. Default: 10 minutes for a private broker, else never.""",
    ).tag(config=True)
    max_sessions = Int(
        256,
        min=1,
        help="""Most processes that may use the device at once. Each costs the broker three file
        descriptors and the device nothing until it has tensors there.""",
    ).tag(config=True)
    max_user_sessions = Int(
        0,
        min=0,
        help="""The same for one user whose quota says nothing of sessions; 0: half of max_sessions,
        but at least 4. The last eighth of all is kept for users who have none, so that nobody can
        keep others out. (A user is a uid here, whatever names its processes give.)""",
    ).tag(config=True)
    max_user_seats = Int(
        0,
        min=0,
        help="""Most kernels that one user's Jupyter servers may have announced at once, running
        or not; 0: four for each of the sessions that one user may have. All users together may have
        four times max_sessions, the last eighth of which is kept for users who have none. Where one
        Jupyter server starts everybody's kernels, all of them count as the server's.""",
    ).tag(config=True)
    max_user_connections = Int(
        64,
        min=1,
        help="""Most connections of one user that were not answered yet; eight times as many of all
        users together. Each costs a file descriptor, for handshake_timeout seconds at most.""",
    ).tag(config=True)
    max_user_arenas = Bytes(
        0,
        help="""How much of the host's memory one user's sessions may share with the broker, for the
        transfer of tensors ("4G"). Counted as announced: 64M a session, of which the host has to
        give what is touched. 0: enough for all sessions that one user may have.""",
    ).tag(config=True)

    # -- what each of them may have ----------------------------------------------------------

    default_quota = Dict(
        help="""What every user may have, unless a group or the user's own quota says otherwise:
        "weight" (share of device time relative to others with work, 0.001 to 1000; 1),
        "memory" (bytes of all their notebooks on the device, as "4G"; None: no limit),
        "resident" (bytes of these that may be models and optimizers),
        "device_seconds" (device time that may be used within any "period"; None: no limit),
        "period" (a rolling one, as "12h" or "7d"; "1d"),
        "sessions" (processes at once), "priority" ("interactive", "normal" or "batch": the most
        urgent that they may ask for, and what they have otherwise; "normal"),
        "over_budget" (beyond device_seconds: "warn" says so, "throttle" runs their work only while
        nobody else needs the device, "deny" refuses new work; "throttle").
        Memory limits are counted, not walled, as "memory" is above. `jgpu quota set` changes all
        of it live; what is set live stands above this file.""",
    ).tag(config=True)
    group_quotas = Dict(
        help="""The same for members of groups: {"students": {"weight": 1, "memory": "4G"}}. Groups
        are those of `groups` and the host's Unix groups. A user who is in several has the most
        generous value of each field; device_seconds and period come from one group together.""",
    ).tag(config=True)
    user_quotas = Dict(
        help="""The same for single users: {"user1": {"device_seconds": "4h"}}. Stands above groups
        and default, field by field.""",
    ).tag(config=True)
    groups = Dict(
        help="""Groups besides those of the host: {"seminar": ["user1", "user2"]}.""",
    ).tag(config=True)
    ledger = Unicode(
        "",
        help="""Where it is kept who used how much device time: a URL as SQLAlchemy has them, as
        postgresql+psycopg://jgpu@host/jgpu (install the driver into the broker's environment).
        Default: a SQLite file in `spool`. While it cannot be written nothing stops; usage is kept
        in memory, and `jgpu status` says so.""",
    ).tag(config=True)
    usage_interval = Seconds(
        5.0,
        help="""Seconds between two counts of what sessions use, which are written then. What a
        device used since the last count is lost where its process is killed.""",
    ).tag(config=True)

    keep_events = Seconds(
        180 * 86400.0,
        help="""How long refusals, faults, spills, changes of quotas and the like stay on record
        ("30d"), for `jgpu events` and the administrators' page. At most 200,000 are kept, and of
        what one user causes no more than 20 of a kind each minute.""",
    ).tag(config=True)

    # -- how it runs -------------------------------------------------------------------------

    spool = Unicode(
        help=f"""Directory for spilled memory and crash notes; made with mode 0700. Default:
        {_SYSTEM_SPOOL} for root's broker of the host, else beside the user's socket.""",
    ).tag(config=True)
    handshake_timeout = Seconds(
        5.0, help="Seconds in which a connection must have said what it wants."
    ).tag(config=True)
    start_timeout = Seconds(
        180.0,
        help="Seconds that importing torch and the device's self-test may take at a start.",
    ).tag(config=True)
    op_limit = Seconds(
        0.0,
        help="""Seconds that one piece of a notebook's work may take on the device ("10m"): an op,
        or the few dozen that are sent together. Beyond it the notebook's session ends with a
        sentence, and what it had on the device is lost. 0: as long as it takes; others are served
        beside it.""",
    ).tag(config=True)
    op_grace = Seconds(
        60.0,
        help="""Seconds that an op may go on after its notebook is gone. Then its lane is given up
        and others get a new one; its memory comes back when it ends after all.""",
    ).tag(config=True)
    silent_limit = Seconds(
        60.0,
        help="""Seconds that the device's process may give no sign of life before it is ended and
        started again, which costs all notebooks what they have on the device.""",
    ).tag(config=True)
    stopped_limit = Seconds(
        600.0,
        help="""The same for a process that somebody has stopped, with a debugger or SIGSTOP.""",
    ).tag(config=True)
    crash_limit = Int(
        5,
        min=1,
        help="""Executor processes that end by themselves are started again, up to so often within
        a minute; then the device counts as out of order for a minute. Ends that one user's program
        caused do not count.""",
    ).tag(config=True)
    user_crash_limit = Int(
        5,
        min=1,
        help="""A user whose programs have ended the executor so often within ten minutes has to
        wait: for ten minutes new work of theirs is refused. Others are served meanwhile.""",
    ).tag(config=True)
    executor_command = List(
        Unicode(),
        help="""Command of the executor process, to run it in another interpreter; the settings and
        two descriptors are appended. Empty: this interpreter.""",
    ).tag(config=True)
    executor_environment = Dict(
        help="Environment variables set for executors, on top of those that jgpu sets itself.",
    ).tag(config=True)

    trace = Unicode(
        "",
        help="""File for the times of the works that ran last (lane, session, ready, begun, ended),
        written when the device's process ends; for measurements. Empty: no times are taken.""",
    ).tag(config=True)

    config_file = Unicode(
        "", help="Configuration file to read instead of the default ones, or to write."
    ).tag(config=True)
    generate_config = Bool(
        False,
        help="""Print a configuration file that explains every setting, or write it where --config
        says.""",
    )
    systemd_unit = Bool(False, help="Print a systemd unit for a broker of the whole host.")

    aliases: ClassVar[Any] = {  # type: ignore[misc]
        "config": "JgpuBroker.config_file",
        "admin-group": "JgpuBroker.admin_group",
        "device": "JgpuBroker.device",
        "gpu": "JgpuBroker.gpu",
        "group": "JgpuBroker.group",
        "idle": "JgpuBroker.idle_exit",
        "lanes": "JgpuBroker.lanes",
        "log-level": "JgpuBroker.log_level",
        "max-sessions": "JgpuBroker.max_sessions",
        "memory": "JgpuBroker.memory",
        "policy": "JgpuBroker.policy",
        "record": "JgpuBroker.record",
        "socket": "JgpuBroker.socket_path",
        "spool": "JgpuBroker.spool",
        "threads": "JgpuBroker.threads",
    }
    flags: ClassVar[Any] = {  # type: ignore[misc]
        "private": ({"JgpuBroker": {"private": True}}, private.help),
        "debug": ({"JgpuBroker": {"log_level": 10}}, "Log everything."),
        "generate-config": ({"JgpuBroker": {"generate_config": True}}, generate_config.help),
        "systemd-unit": ({"JgpuBroker": {"systemd_unit": True}}, systemd_unit.help),
    }
    generate_config.tag(config=True)
    systemd_unit.tag(config=True)

    @default("socket_path")
    def _socket_path_default(self) -> str:
        if named := os.environ.get(ADDRESS):
            return str(parse(named))
        return str(SYSTEM_SOCKET if os.getuid() == 0 and not self.private else user_socket())

    @default("admin_socket_path")
    def _admin_socket_path_default(self) -> str:
        return str(admin_socket(Path(self.socket_path)))

    @default("spool")
    def _spool_default(self) -> str:
        if os.getuid() == 0 and not self.private:
            return str(_SYSTEM_SPOOL)
        # systemd's StateDirectory=, for a system account without a home. That of a private broker
        # is of the service that started it, as a Jupyter server.
        named = "" if self.private else os.environ.get("STATE_DIRECTORY", "")
        return named.partition(":")[0] or str(user_directory() / "spool")

    @default("host_pool")
    def _host_pool_default(self) -> int:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return pages * size // _HOST_PART

    @default("idle_exit")
    def _idle_exit_default(self) -> float:
        return _PRIVATE_IDLE_S if self.private else 0.0

    @default("log_level")
    def _log_level_default(self) -> int:
        return logging.INFO

    # -- configuration -----------------------------------------------------------------------

    @catch_config_error
    def initialize(self, argv: Sequence[str] | None = None) -> None:
        """Command line, then files, then the command line again: it has the last word."""
        self.parse_command_line(list(argv) if argv is not None else None)
        command_line = self.cli_config
        if not (self.generate_config or self.systemd_unit):
            if self.config_file and not Path(self.config_file).is_file():
                raise ConfigError(f"There is no configuration file {self.config_file}.")
            self.read_files()
            self.update_config(command_line)

    def write_config(self) -> Path:
        """Write a configuration file that explains every setting; refuse to overwrite one."""
        file = Path(self.config_file)
        try:
            with file.open("x", encoding="utf-8") as stream:
                stream.write(self.generate_config_file())
        except FileExistsError:
            raise ConfigError(
                f"{file} exists already and is left as it is; name another file with --config."
            ) from None
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}.") from None
        return file

    def settings(self) -> BrokerSettings:
        """Everything above, frozen; makes the spool directory."""
        options: dict[str, Any] = {}
        if self.ledger:
            from jgpu.broker.control.quotas.ledger.store import check_url

            check_url(self.ledger)
        if self.executor_command:
            options["executor_command"] = tuple(self.executor_command)
        return BrokerSettings(
            socket=Path(self.socket_path).absolute(),
            device=self.device,
            claims_gpu=self.claims_gpu,
            executor=ExecutorSettings(
                device="cpu",
                poses_as=self.null_poses_as,
                index=self.gpu,
                capacity=int(self.memory),
                lanes=self.lanes,
                threads=self.threads,
                policy=self.policy,
                host_pool=int(self.host_pool),
                spill_after_s=self.spill_after,
                evict_after_s=self.evict_after,
                record=str(Path(self.record).absolute()) if self.record else "",
                spool=str(make_directory(Path(self.spool).absolute())),
                trace=str(Path(self.trace).absolute()) if self.trace else "",
                log_level=logging.getLevelName(self.log_level)
                if isinstance(self.log_level, int)
                else str(self.log_level),
            ),
            group=self.group,
            private=self.private,
            idle_exit_s=self.idle_exit,
            admin_socket=None if self.private else Path(self.admin_socket_path).absolute(),
            admin_group=self.admin_group,
            max_sessions=self.max_sessions,
            max_user_sessions=self.max_user_sessions,
            max_user_seats=self.max_user_seats,
            max_user_connections=self.max_user_connections,
            max_user_arenas=int(self.max_user_arenas),
            quotas=quota_settings(
                self.default_quota,
                self.group_quotas,
                self.user_quotas,
                self.groups,
                self.loaded_config_files,
            ),
            ledger=self.ledger,
            usage_interval_s=self.usage_interval,
            keep_events_s=self.keep_events,
            handshake_timeout_s=self.handshake_timeout,
            start_timeout_s=self.start_timeout,
            patience=Patience(
                outlives_s=self.op_grace,
                work_s=self.op_limit,
                silent_s=self.silent_limit,
                stopped_s=self.stopped_limit,
            ),
            crash_limit=self.crash_limit,
            user_crash_limit=self.user_crash_limit,
            executor_environment=dict(self.executor_environment),
            **options,
        )

    # -- running -----------------------------------------------------------------------------

    def run(self) -> int:
        """What the command line asks for; the exit status."""
        if self.systemd_unit:
            sys.stdout.write(unit_text(sys.executable))
            return 0
        if self.generate_config:
            where = self.config_file
            said = f"Wrote {self.write_config()}.\n" if where else self.generate_config_file()
            sys.stdout.write(said)
            return 0
        prepare_process(self.log, private=self.private)
        settings = self.settings()
        if settings.socket == user_socket():
            make_directory(settings.socket.parent)
        return asyncio.run(serve(settings))


def launch(arguments: Sequence[str]) -> int:
    """Configure and run; errors of the configuration are one sentence and status 1."""
    application = JgpuBroker()
    try:
        application.initialize(arguments)
    except TraitError as error:
        raise ConfigError(str(error)) from None
    return application.run()
