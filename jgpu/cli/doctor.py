"""Explain what is wrong with this host's shared device, and what to do about it.

Each line is one thing that was looked at: ok, a note, or a problem with what to do. The exit
status is 1 if there is a problem. With --gpu programs run on the GPU for up to three minutes, each
in a broker of its own, and the last line says whether anything is wrong with it.
"""

import argparse
import itertools
import json
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Final

from msgspec import UnsetType

from jgpu import __version__
from jgpu.cli._accelerator import look_at_accelerator
from jgpu.cli._gpus import look_at_gpus
from jgpu.errors import BrokerUnreachable, JgpuError
from jgpu.requirements import BROKER, lacking, torch_tried
from jgpu.untried import fitness_of
from jgpu.wire import address
from jgpu.wire.reports.report import LedgerReport

__all__ = ["CHECKS", "Finding", "main"]

_OK, _NOTE, _PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look showed; `advice` says what to do."""

    subject: str
    state: str
    text: str
    advice: str = ""


def check_system() -> Iterator[Finding]:
    """Linux, Python, and what jgpu needs of the kernel."""
    if not sys.platform.startswith("linux"):
        advice = "Use a Linux host; on Windows, WSL 2."
        yield Finding("system", _PROBLEM, f"This is {platform.system()}.", advice)
        return
    yield Finding("system", _OK, f"Linux {platform.release()}, Python {platform.python_version()}")
    try:
        descriptor = os.memfd_create("jgpu-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.close(descriptor)
        yield Finding("memory files", _OK, "memfd_create works.")
    except (OSError, AttributeError) as error:
        advice = "Allow memfd_create in the container's seccomp profile."
        yield Finding("memory files", _PROBLEM, f"memfd_create fails: {error}.", advice)
    try:
        os.close(os.pidfd_open(os.getpid()))
        yield Finding("process watch", _OK, "pidfd_open works.")
    except (OSError, AttributeError) as error:
        text = f"pidfd_open fails ({error}); the broker looks into /proc instead, a little slower."
        yield Finding("process watch", _NOTE, text)


def check_torch() -> Iterator[Finding]:
    """The torch of this environment, without importing it, and the way jgpu gets into it."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        advice = "Install torch into the environment of the kernel."
        yield Finding("torch", _PROBLEM, f"{sys.executable} has no torch.", advice)
        return
    fitness = fitness_of(version, anew=True)
    if fitness.problem:
        yield Finding("torch", _PROBLEM, fitness.problem, f"pip install '{torch_tried()}'")
    elif fitness.warning:
        yield Finding("torch", _NOTE, fitness.warning)
    else:
        yield Finding("torch", _OK, f"torch {version} was tried with jgpu {__version__}.")
    points = metadata.entry_points(group="torch.backends", name="jgpu")
    if points:
        yield Finding("entry point", _OK, "torch loads jgpu by the entry point torch.backends.")
    else:
        advice = f"Install it: {sys.executable} -m pip install --force-reinstall jgpu."
        yield Finding("entry point", _PROBLEM, "jgpu is not installed as a package.", advice)
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        advice = "Unset it where kernels are started; it keeps jgpu out of torch."
        text = "TORCH_DEVICE_BACKEND_AUTOLOAD is 0."
        yield Finding("autoload", _PROBLEM, text, advice)


def check_accelerator() -> Iterator[Finding]:
    """Whether this environment's kernels have it, and whether it loads."""
    for subject, state, text, advice in look_at_accelerator():
        yield Finding(subject, state, text, advice)


def check_packages() -> Iterator[Finding]:
    """What the broker needs besides, in this environment."""
    if missing := lacking(name for name in BROKER.values() if name != "torch"):
        text = f"Missing for a broker of one's own: {', '.join(missing)}."
        yield Finding("broker's packages", _NOTE, text, "pip install 'jgpu[broker]'")
    else:
        yield Finding("broker's packages", _OK, f"jgpu {__version__} with the broker's extras.")
    if _has("pynvml") and _has("nvidia-ml-py"):
        text = "The package pynvml is deprecated and makes torch warn at every start."
        yield Finding("pynvml", _PROBLEM, text, "pip uninstall pynvml; nvidia-ml-py replaces it.")


def _has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_gpu() -> Iterator[Finding]:
    """Whether driver and GPUs are there for this user, and can be used."""
    for subject, state, text, advice in look_at_gpus():
        yield Finding(subject, state, text, advice)


def check_broker() -> Iterator[Finding]:
    """The address, its socket, and whether somebody answers there."""
    where = address.find()
    origin = {"environment": address.ADDRESS, "system": "the host", "user": "you alone"}
    yield Finding("address", _OK, f"{where} ({origin[where.origin]}).")
    try:
        found = where.path.lstat()
    except OSError as error:
        if where.may_be_private and isinstance(error, FileNotFoundError):
            text = "No broker runs; a kernel or `jgpu run` starts one for you when it needs it."
            yield Finding("broker", _NOTE, text)
        else:
            text = f"No socket at {where.path}: {error.strerror}."
            advice = "Start the host's broker (systemctl start jgpu-broker), or unset JGPU_ADDRESS."
            yield Finding("broker", _PROBLEM, text, advice)
        return
    if not (stat.S_ISSOCK(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        advice = "Remove it, or have JGPU_ADDRESS name the broker's socket."
        yield Finding("socket", _PROBLEM, f"{where.path} is no socket.", advice)
        return
    mode = stat.S_IMODE(found.st_mode)
    if where.path.with_name(address.SERVER_FILES_NAME).is_dir():
        yield Finding("socket", _OK, "It was made for this server alone.")
    elif mode & 0o007:
        advice = "Restart the broker; it makes its socket with mode 0600, or 0660 with --group."
        yield Finding("socket", _PROBLEM, f"Anybody may connect: mode {mode:04o}.", advice)
    yield from _ask(where)


def _ask(where: address.Address) -> Iterator[Finding]:
    from jgpu.wire.reports.asking import ask_report

    try:
        status = ask_report(address.find_for_administration())
    except BrokerUnreachable as error:
        if where.may_be_private:
            text = f"{error} A kernel or `jgpu run` starts one for you when it needs it."
            yield Finding("broker", _NOTE, text)
        else:
            yield Finding("broker", _PROBLEM, str(error), "Start it, and look into its log.")
        return
    broker = status.broker
    text = f"jgpu {broker.version} with torch {broker.torch or '-'} answers."
    if broker.version == __version__:
        yield Finding("broker", _OK, text)
    else:
        advice = f"This is jgpu {__version__}; have the same version in both environments."
        yield Finding("broker", _NOTE, text, advice)
    for device in status.devices:
        state = {"failed": _PROBLEM, "ready": _OK}.get(device.state, _NOTE)
        text = f"{device.name} ({device.kind}) is {device.state}. {device.note}"
        yield Finding("device", state, text.strip())
    yield from _ledger(status.ledger)


def _ledger(ledger: LedgerReport | UnsetType) -> Iterator[Finding]:
    """What the broker says of its usage ledger; only administrators are told."""
    if not ledger:
        return
    if ledger.state == "failing":
        advice = "Make room, or let go of what holds it; nothing is lost while the broker runs."
        yield Finding("usage ledger", _PROBLEM, ledger.text, advice)
    elif ledger.text:
        advice = "Look into the file that was moved aside; SQLite's `.recover` may read it."
        yield Finding("usage ledger", _NOTE, ledger.text, advice)
    else:
        yield Finding("usage ledger", _OK, f"{ledger.url or 'The ledger'} is {ledger.state}.")


def check_jupyter() -> Iterator[Finding]:
    """Whether Jupyter knows the kernel and its provisioner."""
    points = metadata.entry_points(group="jupyter_client.kernel_provisioners")
    if "jgpu-provisioner" not in points.names:
        advice = f"Install jgpu into Jupyter's environment ({sys.executable})."
        yield Finding("provisioner", _PROBLEM, "Jupyter does not know jgpu-provisioner.", advice)
        return
    from jgpu.kernelprovider import kernelspec, routing

    specs = kernelspec.find_all()
    routed = routing.is_routed(kernelspec.Place.default())
    if specs:
        names = ", ".join(f"{name} ({path})" for name, path in specs.items())
        yield Finding("kernels", _OK, f"Installed: {names}.")
    elif routed or "JUPYTER_DEFAULT_PROVISIONER_NAME" in os.environ:
        yield Finding("kernels", _OK, "Every kernel goes through jgpu-provisioner.")
    else:
        text = "No kernel of Jupyter uses the shared device."
        yield Finding("kernels", _PROBLEM, text, "Run `jgpu kernelspec install`.")


CHECKS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (
    check_system,
    check_torch,
    check_accelerator,
    check_packages,
    check_gpu,
    check_broker,
    check_jupyter,
)


def examine() -> list[Finding]:
    """All findings; a check that fails is itself a finding."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings.extend(check())
        except JgpuError as error:
            subject = check.__name__.removeprefix("check_")
            findings.append(Finding(subject, _PROBLEM, str(error), error.advice))
        except Exception as error:
            subject = check.__name__.removeprefix("check_")
            text = f"Could not be looked at: {type(error).__name__}: {error}"
            findings.append(Finding(subject, _PROBLEM, text))
    return findings


def try_gpu() -> Iterator[Finding]:
    """Whether everything works on the GPU itself."""
    from jgpu.cli._trying import try_the_gpu

    for subject, state, text, advice in try_the_gpu():
        yield Finding(subject, state, text, advice)


def main(arguments: Sequence[str]) -> int:
    """`jgpu doctor [--json] [--gpu]`."""
    parser = argparse.ArgumentParser(prog="jgpu doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the findings, for programs")
    parser.add_argument("--gpu", action="store_true", help="try the GPU for up to three minutes")
    options = parser.parse_args(arguments)
    findings = []
    for finding in itertools.chain(examine(), try_gpu() if options.gpu else ()):
        findings.append(finding)
        if not options.json:
            _print(finding)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return int(any(finding.state == _PROBLEM for finding in findings))


def _print(finding: Finding) -> None:
    print(f"{finding.state:>8}  {finding.subject}: {finding.text}", flush=True)
    if finding.advice and finding.state != _OK:
        print(f"{'':>8}  -> {finding.advice}", flush=True)
