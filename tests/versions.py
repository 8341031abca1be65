"""Runs the suites that lean on torch beside other releases of it, each in its own environment.

    make test-versions                           each release that `jgpu.requirements` names
    make test-cuda-build                         the newest CUDA build, with the lessons
    python tests/versions.py 2.14 --suites device --environments FOLDER

An environment with a CUDA build takes about 7 GB while it is used; `--environments` keeps them in a
folder, and uses those that are there. What else is said goes to pytest. A file of figures for each
release goes to `bench/results`, with what other suites found beside it that day. Where packages
cannot be fetched it says so, and goes on.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import read_result, write_result

from jgpu.requirements import TORCH, torch_wanted

ROOT = Path(__file__).parents[1]
NEWEST = "newest"
_EVERYDAY = "not slow and not long"
#: Of the device's tests, those where torch's private parts are used: what is recorded for a CPU and
#: for CUDA, the lists of ops, what is refused, and what ops return by formulas.
_DEVICE = [
    *(f"tests/device/test_{name}.py" for name in ("on_device", "on_cuda", "named", "versions")),
    "tests/wire/test_formulas.py",
]
#: by name: folders and files, and which of their tests
SUITES = {
    "device": (_DEVICE, _EVERYDAY),
    "parity": (["tests/parity"], _EVERYDAY),
    "programs": (["tests/broker/programs"], _EVERYDAY),
    "lessons": (["tests/notebooks/test_execution.py"], "not long"),
    "on a CUDA without a GPU": (
        ["-k", "a_cuda_without_a_gpu or cuda-on-host", "tests/parity", "tests/notebooks"],
        "e2e",
    ),
}
_ASKED = "import torch; print(torch.__version__, torch.version.cuda or 'none')"


class NotMade(Exception):
    """An environment that could not be made; the sentence says why."""


def say(line):
    """Print a line, before what the next run prints."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(*words, **options):
    """A command from this tree."""
    return subprocess.run([*map(str, words)], cwd=ROOT, check=False, **options)


def make_environment(place, release):
    """Python of an environment with that release of torch; `NotMade` if there is none."""
    python = place / "bin/python"
    wanted = torch_wanted() if release == NEWEST else f"torch=={release}.*"
    if not python.exists():
        run(sys.executable, "-m", "venv", place)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as others:
        lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
        others.writelines(line for line in lines if not line.startswith("torch=="))
        others.flush()
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        packages = ["--constraint", others.name, "--editable", ".[broker,hub,notebooks,test]"]
        done = run(*pip, *packages, wanted, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = said[-1].removeprefix("ERROR: ") if said else f"status {done.returncode}"
        raise NotMade(f"{wanted} could not be fetched, so nothing was tried: {why}")
    run(
        python, "-m", "jgpu.accelerator"
    )  # where it cannot, it says so, and the plain form is tried
    return python


def run_suite(python, name, arguments):
    """How it ended, as a row; what failed is run again alone, for a busy machine is slow."""
    where, which = SUITES[name]
    row = run_tests(python, ["-m", which, *where, *arguments])
    if row["failed"]:
        alone = dict.fromkeys(line.partition(" ")[2] for line in row["failed"])
        row["alone"] = run_tests(python, [*alone, *arguments])
    return row


def run_tests(python, words):
    """How pytest ended, as a row."""
    began, last, failed = time.monotonic(), [], []
    command = [python, "-m", "pytest", "-q", *words]
    say(f"\n== {' '.join(map(str, command))}")
    with subprocess.Popen(
        [*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last = [*last[-20:], line.strip("= \n")]
            if line.startswith(("FAILED ", "ERROR ")):
                failed.append(line.split(" - ")[0].strip())
    counts = next((text for text in reversed(last) if re.search(r"\d+ \w+.* in ", text)), "?")
    minutes = round((time.monotonic() - began) / 60, 1)
    row = {"outcome": counts, "status": process.returncode, "minutes": minutes}
    return row | {"failed": failed}


def rows_of_today(written, version):
    """What a file of today says of suites beside that version, each with the commit that it ran."""
    if written.get("torch") != version:
        return {}
    return {suite: {"commit": written["commit"]} | row for suite, row in written["suites"].items()}


def try_release(release, suites, folder, arguments):
    """All suites beside it; whether they passed."""
    try:
        python = make_environment(folder / release, release)
    except NotMade as error:
        say(str(error))
        return False
    version, cuda = run(python, "-c", _ASKED, stdout=subprocess.PIPE, text=True).stdout.split()
    if release == NEWEST and cuda == "none":
        say(f"pip brought torch {version}, which is no CUDA build; say PIP_INDEX_URL=... first.")
        return False
    name = "cuda-build" if release == NEWEST else f"torch-{release}"
    found, earlier = {}, rows_of_today(read_result(name), version)
    for suite in suites:  # written after each, for a run of hours may be ended
        found[suite] = run_suite(python, suite, arguments)
        write_result(name, {"cuda": cuda, "suites": earlier | found}, torch=version)
    for suite, row in found.items():
        say(f"torch {version:16} {suite:10} {row['minutes']:6.1f} min  {row['outcome']}")
    return not any(row["status"] for row in found.values())


def main():
    """1 where a suite failed, or could not be run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["device", "parity"])
    parser.add_argument("--environments", type=Path, metavar="FOLDER")
    options, arguments = parser.parse_known_args()
    if unknown := set(options.releases) - {*TORCH, NEWEST}:
        parser.error(f"{', '.join(unknown)}: none of {', '.join(TORCH)}, {NEWEST}")
    passed = []
    for release in options.releases or TORCH:
        with contextlib.ExitStack() as stack:
            folder = options.environments
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jgpu-")))
            passed.append(try_release(release, options.suites, folder.absolute(), arguments))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
