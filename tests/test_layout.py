"""Rules of the whole project: who may import whom, what is public, what no file may say.

Covers what holds for every module and every tracked file. Most is read, not imported, so that a
rule is checked also where a module's imports are inside functions.
"""

import ast
import functools
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jgpu"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "resources" not in path.parts)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

#: Part of the package, and the other parts that it may import; the longest name counts.
MAY_IMPORT = {
    "jgpu": set(),
    "jgpu.errors": set(),
    "jgpu.requirements": set(),
    "jgpu.untried": {"jgpu", "jgpu.requirements"},
    "jgpu.wakefulness": set(),
    "jgpu.wire": {"jgpu.errors"},
    "jgpu.sched": {"jgpu.errors"},
    "jgpu.accelerator": {"jgpu.errors", "jgpu.requirements"},
    "jgpu.device": {
        "jgpu",
        "jgpu.accelerator",
        "jgpu.errors",
        "jgpu.requirements",
        "jgpu.untried",
        "jgpu.wakefulness",
        "jgpu.wire",
    },
    "jgpu.kernelprovider": {"jgpu", "jgpu.errors", "jgpu.requirements", "jgpu.wire"},
    "jgpu.broker": {
        "jgpu",
        "jgpu.accelerator",
        "jgpu.errors",
        "jgpu.untried",
        "jgpu.wakefulness",
        "jgpu.wire",
        "jgpu.sched",
    },
    "jgpu.selfcheck": {"jgpu.broker", "jgpu.device", "jgpu.errors", "jgpu.wire"},
    "jgpu.hub": {"jgpu", "jgpu.errors", "jgpu.wire"},
    "jgpu.labserver": {"jgpu", "jgpu.errors", "jgpu.wire"},
    "jgpu.terminal": {"jgpu.errors", "jgpu.wire"},
    "jgpu.simulate": {"jgpu.errors", "jgpu.sched", "jgpu.wire"},
    "jgpu.demo": {"jgpu", "jgpu.errors", "jgpu.kernelprovider", "jgpu.terminal", "jgpu.wire"},
    "jgpu.bench": {
        "jgpu",
        "jgpu.broker",
        "jgpu.demo",
        "jgpu.device",
        "jgpu.errors",
        "jgpu.kernelprovider",
        "jgpu.sched",
        "jgpu.wire",
    },
    "jgpu.gpucheck": {
        "jgpu",
        "jgpu.bench",
        "jgpu.broker",
        "jgpu.errors",
        "jgpu.kernelprovider",
        "jgpu.wire",
    },
    "jgpu.cli": {
        "jgpu",
        "jgpu.accelerator",
        "jgpu.bench",
        "jgpu.broker",
        "jgpu.demo",
        "jgpu.device",
        "jgpu.errors",
        "jgpu.gpucheck",
        "jgpu.hub",
        "jgpu.kernelprovider",
        "jgpu.requirements",
        "jgpu.sched",
        "jgpu.simulate",
        "jgpu.terminal",
        "jgpu.untried",
        "jgpu.wire",
    },
    "jgpu.__main__": {"jgpu.cli"},
}
MAY_IMPORT_TORCH = ("jgpu.device", "jgpu.broker.executor", "jgpu.selfcheck")
PURE = ("jgpu.wire", "jgpu.sched")
IMPURE = {"random", "secrets", "threading", "time", "uuid"}
#: Connects sockets under a deadline, for callers that wait: the one place of `wire` with a clock.
WITH_A_CLOCK = {"jgpu.wire.asking"}

#: Plugins of a program that is no package of the index, and imported by it alone.
WITH_THEIR_HOST = {"jgpu.hub.tljh"}

MOST_LINES = 300
MEDIAN_LINES = 125
#: However good the reason.
MOST_LINES_EVER = 500
#: Longer files, each with the reason why it stays whole.
LONGER = {
    "jgpu/broker/control/configuration/app.py": "a trait each, with its help",
    "jgpu/broker/control/quotas/desk.py": "where quotas, usage and ledger meet",
    "jgpu/broker/control/quotas/ledger/charges.py": "what waits to be written, and its writer",
    "jgpu/broker/control/registry.py": "seats and sessions are counted against each other",
    "jgpu/broker/control/server.py": "a connection, from its greeting to its answer",
    "jgpu/broker/control/sessions.py": "each descriptor, from its coming to its end",
    "jgpu/broker/executor/programs/asking/choices.py": "each question, and what torch is asked",
    "jgpu/broker/executor/programs/checking/check.py": "one walk over a program",
    "jgpu/broker/executor/programs/definition.py": "the ways of one run, and what each learns",
    "jgpu/broker/executor/programs/running/compile.py": "one writer of one function",
    "jgpu/broker/executor/programs/running/interpret.py": "one walk over a plan",
    "jgpu/broker/executor/scheduling/driver.py": "a method for each event and action of the core",
    "jgpu/broker/executor/works/runs.py": "a run's way from its buffers to what is told of it",
    "jgpu/broker/flightpage.py": "the layout of a page, for who writes it and who reads it",
    "jgpu/device/client/outbox.py": "one order of all that goes out",
    "jgpu/device/composed/autocast.py": "lists of torch's casts, and what applies them",
    "jgpu/device/composed/composites.py": "lowerings, and the stand-in that they run on",
    "jgpu/device/recording/infer.py": "a plan, and all that makes one",
    "jgpu/device/recording/ops.py": "facts of a schema, found once",
    "jgpu/sched/core.py": "a handler for each event",
    "jgpu/sched/simulate/device.py": "a device in virtual time carries out each action",
    "jgpu/simulate/published/salus.py": "one table of a paper",
    "jgpu/wire/messages/__init__.py": "every message, by its conversation",
    "jgpu/wire/reports/report.py": "the status, as it is printed",
}

MOST_MODULES = 12
#: Folders with more modules, each with the reason why they stay together.
FULLER = {
    "jgpu/broker/executor/programs/contracts": "a family of ops each",
    "jgpu/cli": "a command is a module of its name",
}

MOST_ATTRIBUTES = 20
#: Classes with more, each with the reason. What is flat stays so: its fields are names that others
#: read or write.
WIDER = {
    "jgpu.broker.control.configuration.settings.BrokerSettings": "a setting each",
    "jgpu.device.cuda.devices.Properties": "torch.cuda's own names",
    "jgpu.device.recording.infer.OpPlan": "what each call of a plan is recorded and checked by",
    "jgpu.device.recording.ops.OpInfo": "facts of one schema, read at each recorded op",
    "jgpu.sched.limits.Limits": "a number each, and all of them there",
    "jgpu.wire.switches.Flags": "a switch of torch each",
    "jgpu.wire.reports.report.SessionReport": "a field each of the status's JSON",
}

#: Class names that two modules define, each with the reason.
SHARED_NAMES = {
    "CellEnded": "the message, and the event that it becomes",
    "CellStarted": "the message, and the event that it becomes",
    "Event": "of the scheduler, and torch.cuda's own name",
    "WorkCancelled": "the event, and the error that it becomes",
}


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def parsed(path):
    return ast.parse(path.read_bytes(), path)


def lines_of(path):
    return len(path.read_text().splitlines())


@functools.cache
def imports_of(path):
    """(line, full name) of everything that a module imports, wherever in its text."""
    return list(_imports_of(path))


def _imports_of(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base


def part_of(name, parts=tuple(MAY_IMPORT)):
    """The part of the package that a module is in."""
    return max((p for p in parts if name == p or name.startswith(p + ".")), key=len, default=None)


def within(name, packages):
    return part_of(name, packages) is not None


def run_python(code):
    """Standard output of an interpreter of its own, as JSON."""
    done = processes.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- imports -------------------------------------------------------------------------------------


def allowed(name):
    """The parts that a module may import."""
    own = part_of(name)
    return MAY_IMPORT[own] | ({own} if own != "jgpu" else set())


def test_imports_go_one_way():
    wrong = [
        f"{name}, line {line}: {imported}; it may import {sorted(allowed(name))}"
        for name, path in MODULES.items()
        for line, imported in imports_of(path)
        if imported.split(".")[0] == "jgpu" and part_of(imported) not in allowed(name)
    ]
    assert wrong == []


def _is_for_types_alone(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imported_when_run(path):
    """Modules of the package that a module imports, also in functions; not those for types."""
    skipped = {
        line
        for node in ast.walk(parsed(path))
        if _is_for_types_alone(node)
        for line in range(node.lineno, node.body[-1].end_lineno + 1)
    }
    return {name for line, name in imports_of(path) if line not in skipped and name in MODULES}


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: _imported_when_run(path) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names them


def test_a_folder_has_at_most_a_dozen_modules():
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in FILES if path.name != "__init__.py"
    )
    assert {folder for folder, count in folders.items() if count > MOST_MODULES} == set(FULLER)


def test_no_class_name_means_two_things():
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set(SHARED_NAMES)


def attributes_of(definition):
    """Names that a class declares, or that its methods set on themselves."""
    names = set()
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names |= {
                node.attr
                for node in ast.walk(statement)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
    return names


def test_a_class_has_at_most_a_score_of_attributes():
    counts = {
        f"{name}.{node.name}": len(attributes_of(node))
        for name, path in MODULES.items()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    }
    assert {name for name, count in counts.items() if count > MOST_ATTRIBUTES} == set(WIDER)


def test_attributes_are_counted_however_they_are_set():
    (definition,) = ast.parse(
        "class A:\n"
        "    a: int = 0\n"
        "    def f(self):\n"
        "        self.b, (self.c, other.d) = 1, (2, 3)\n"
        "        self.e += self.g\n"
        "        with x as self.h: self.i[0] = 1\n"
        "    async def k(self): self.m: int = 2\n"
    ).body
    assert attributes_of(definition) == {"a", "b", "c", "e", "h", "m"}


def test_every_module_belongs_to_a_part_with_rules_of_its_own():
    strangers = [name for name in MODULES if part_of(name) == "jgpu" and name != "jgpu"]
    assert strangers == []


def tops_of(name):
    """The first names of everything that a module imports."""
    return {imported.split(".")[0] for _, imported in imports_of(MODULES[name])}


def test_only_the_two_ends_of_a_session_import_torch():
    importing = [name for name in MODULES if "torch" in tops_of(name)]
    assert len(importing) > 100
    assert [name for name in importing if not within(name, MAY_IMPORT_TORCH)] == []


#: Where a device's kind itself is meant, each with the reason.
MAY_NAME_A_KIND = {
    "jgpu.broker.executor.devices": "makes the device of that kind",
    "jgpu.device.magics.state": "says it to a person",
    "jgpu.wire.messages.parts": "says what the kind can",
}


def _names_a_kind(node):
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    attributes = {each.attr for each in sides if isinstance(each, ast.Attribute)}
    attributes |= {each.id for each in sides if isinstance(each, ast.Name)}
    kinds = {each.value for each in sides if isinstance(each, ast.Constant)}
    return bool(attributes & {"device", "kind", "_device"} and kinds & {"cpu", "cuda", "null"})


def test_what_a_device_can_is_asked_by_name_not_by_its_kind():
    parts = ("jgpu.broker.executor", "jgpu.device", "jgpu.wire")
    found = {
        name
        for name, path in MODULES.items()
        if within(name, parts) and any(map(_names_a_kind, ast.walk(parsed(path))))
    }
    assert found == set(MAY_NAME_A_KIND)


def test_the_pure_parts_have_no_clock_no_chance_and_no_threads():
    found = {name: tops_of(name) & IMPURE for name in MODULES if within(name, PURE)}
    assert {name: tops for name, tops in found.items() if tops} == {
        name: {"time"} for name in WITH_A_CLOCK
    }


def test_importing_the_package_loads_itself_alone():
    before = "import json, sys; before = set(sys.modules); import jgpu; "
    assert run_python(before + "print(json.dumps(sorted(set(sys.modules) - before)))") == ["jgpu"]


@pytest.mark.parametrize(
    "module",
    [
        "jgpu.wire.messages",
        "jgpu.sched",
        "jgpu.kernelprovider.provisioner",
        "jgpu.cli",
        "jgpu.hub.page.app",
        "jgpu.labserver.app",
    ],
)
def test_a_jupyter_server_never_loads_torch_or_the_broker(module):
    loaded = run_python(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))")
    assert "torch" not in loaded
    assert not [name for name in loaded if name.startswith(("jgpu.broker", "jgpu.device"))]


def test_the_control_process_never_loads_torch():
    app = "jgpu.broker.control.configuration.app"
    code = f"import json, sys, {app}; print(json.dumps(sorted(sys.modules)))"
    assert "torch" not in run_python(code)


# -- what is public ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public():
    """Per module: what `__all__` names that is not there, and whether there is one."""
    code = """
import importlib, json, sys, warnings
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    found[name] = None if names is None else {
        "missing": [each for each in names if not hasattr(module, each)],
        "unique": len(set(names)) == len(names),
    }
print(json.dumps(found))
"""
    names = [
        name for name in MODULES if not name.endswith("__main__") and name not in WITH_THEIR_HOST
    ]
    done = processes.run(
        [sys.executable, "-W", "error", "-c", code, *names],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_module_says_what_is_public_and_has_it(public):
    assert [name for name, found in public.items() if found is None] == []
    assert {name: found for name, found in public.items() if found["missing"]} == {}
    assert [name for name, found in public.items() if not found["unique"]] == []


def test_every_file_begins_with_what_it_is_about():
    silent = [path for path in FILES + TESTS if not ast.get_docstring(parsed(path))]
    assert [str(path) for path in silent if path.name != "conftest.py"] == []


def test_no_module_grows_past_what_one_reads_in_one_go():
    found = {str(path.relative_to(ROOT)): lines_of(path) for path in FILES}
    to_be_split = {
        name: lines
        for name, lines in found.items()
        if lines > (MOST_LINES_EVER if name in LONGER else MOST_LINES)
    }
    assert to_be_split == {}


def test_the_list_of_longer_files_is_true():
    assert all(lines_of(ROOT / name) > MOST_LINES for name in LONGER)


def test_most_modules_are_short():
    lines = [lines_of(path) for path in FILES if path.name != "__init__.py"]
    assert statistics.median(lines) <= MEDIAN_LINES


# -- tests ---------------------------------------------------------------------------------------


def test_every_marker_is_declared():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    declared = {text.partition(":")[0] for text in options["markers"]}
    known = declared | {"filterwarnings", "parametrize", "skip", "skipif", "timeout", "usefixtures"}
    used = {
        (path.name, mark)
        for path in TESTS
        for mark in re.findall(r"pytest\.mark\.(\w+)", path.read_text())
    }
    assert {(name, mark) for name, mark in used if mark not in known} == set()


def test_no_two_modules_of_the_tests_have_one_name():
    """pytest imports them by their bare names."""
    names = Counter(path.name for path in TESTS if path.name not in ("conftest.py", "__init__.py"))
    assert [name for name, count in names.items() if count > 1] == []


#: They wait without a deadline, or end a child and leave a grandchild.
STARTS = {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"}
#: Calls that wait for ever where they are given nothing.
WAITS = {"join", "wait"} | {f"get_{channel}_msg" for channel in ("iopub", "shell", "stdin")}
#: Of those, what waits for nothing, or has a deadline of its own.
SHORT = {"group.join": "enters a control group", "barrier.wait": "it was made with one"}
#: Where processes are started by hand, each with the reason.
BY_HAND = {
    "anywhere.py": "runs the suite in the world of whoever runs it",
    "contract_fuzz.py": "a program that is run by hand, too, and finds no module beside it",
    "processes.py": "the way that all others go",
    "results.py": "programs that are run by hand use it",
    "versions.py": "runs the suites beside other releases of torch",
}


def endless_waits(path):
    """What in a test starts a process, or waits, without a deadline."""
    tree = parsed(path)
    # Coroutines are given to `asyncio.wait_for`, or wait for what another test's task does.
    awaited = {
        inner for node in ast.walk(tree) if isinstance(node, ast.Await) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, whose = node.func.attr, ast.unparse(node.func.value)
        if whose == "subprocess" and name in STARTS:
            yield f"line {node.lineno}: `processes.run` or `processes.start` instead"
        elif name == "readline" and whose.endswith(".stdout"):
            yield f"line {node.lineno}: `line()` of what `processes.start` gives instead"
        elif (
            name in WAITS
            and not (node.args or node.keywords or node in awaited)
            # What `processes.start` gives waits for a while only.
            and not whose.endswith("process")
            and f"{whose}.{name}" not in SHORT
        ):
            yield f"line {node.lineno}: {name}() needs a deadline"


def test_no_test_waits_for_ever():
    found = {str(p): list(endless_waits(p)) for p in TESTS if p.name not in BY_HAND}
    assert {name: waits for name, waits in found.items() if waits} == {}


def test_a_wait_without_end_would_be_found(tmp_path):
    file = tmp_path / "test_x.py"
    file.write_text(
        "subprocess.run(['true'], timeout=3)\nserver.stdout.readline()\nthread.join()\n"
        "thread.join(3)\nclient.get_iopub_msg()\n', '.join(words)\nprocess.wait()\nseen.wait()\n"
        "async def f(): await asyncio.wait_for(event.wait(), 3)\n"
    )
    found = [text.partition(":")[0] for text in endless_waits(file)]
    assert found == ["line 1", "line 2", "line 3", "line 5", "line 8"]


# -- what no file may say ------------------------------------------------------------------------

#: The project speaks of itself alone. Written in pieces, for this file is looked through, too.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w+=/.-])/(?:wo" + r"rk|op" + r"t|roo" + r"t)/\w",
    "a directory beside the repository": r"\.\./sha" + r"red",
    "where packages come from": r"(?:py" + r"pi|pythonhos" + r"ted|download\.pyto" + r"rch)\.org",
    "a number of a list of tasks": r"(?i)\b(?:this|our|the) iss" + r"ue\b|\bissue \d+\b(?! of)",
    "how it is made": r"(?i)\b(?:clau" + r"de|anthro" + r"pic|chat" + r"gpt|copi" + r"lot)\b",
    "by whom it is made": r"(?i)\b(?:helper|coding|main) age" + r"nts?\b|\bai[- ]gener" + r"ated\b",
    "when it was made": r"(?i)\btoday's ses" + r"sion\b|\bBRI" + r"EF\.md\b",
}


def tracked():
    """Files under version control, by name and text; none where there is no git."""
    try:
        listed = processes.run(
            # Whoever runs the tests may have said this in a home that they do not see.
            ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(errors="replace")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says(what):
    pattern = re.compile(FORBIDDEN[what])
    said = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert said == []


def test_what_is_forbidden_would_be_found():
    samples = {
        "a path of one machine": "see /" + "work/main and /" + "opt/x",
        "a directory beside the repository": "../" + "shared/x",
        "where packages come from": "https://py" + "pi.org/simple",
        "a number of a list of tasks": "as issue" + " 2 says",
        "how it is made": "by Clau" + "de",
        "by whom it is made": "helper " + "agents",
        "when it was made": "today's " + "session",
    }
    assert samples.keys() == FORBIDDEN.keys()
    assert all(re.search(FORBIDDEN[what], text) for what, text in samples.items())
