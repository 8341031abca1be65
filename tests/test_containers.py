"""What outlives a call is found wherever it is made, and told apart from what never changes."""

import textwrap

import pytest
from containers import containers, of_text


def found(text, **others):
    return {
        (c.owner, c.name, c.kind, c.grown) for c in of_text("m", textwrap.dedent(text), **others)
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("known = {}", {("", "known", "mapping", True)}),
        ("known: Final[dict[str, int]] = {}", {("", "known", "mapping", True)}),
        ("_HANDLERS = {'a': 1}", {("", "_HANDLERS", "mapping", False)}),
        ("names: Mapping[str, int] = {'a': 1}", {("", "names", "mapping", False)}),
        ("known = {'a': 1}\ndef f():\n    known['b'] = 2", {("", "known", "mapping", True)}),
        ("seen = {1}\ndef f():\n    put = seen.add", {("", "seen", "set", True)}),
        ("queue = collections.deque(maxlen=3)", {("", "queue", "list", True)}),
        ("kept = weakref.WeakValueDictionary()", {("", "kept", "mapping", True)}),
        ("kept = WeakValueDictionary[int, str]()", {("", "kept", "mapping", True)}),
        ("number = 3\nnames = tuple({})", set()),
        ("if A:\n    known = OrderedDict()", {("", "known", "mapping", True)}),
        (
            "try:\n    pass\nfinally:\n    known = defaultdict(int)",
            {("", "known", "mapping", True)},
        ),
    ],
)
def test_variables_of_a_module(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("handlers: ClassVar[dict[str, int]] = {}", {("A", "handlers", "mapping", True)}),
        ("made: dict[int, int] = field(default_factory=dict)", {("A", "made", "mapping", True)}),
        ("made: Any = field(default_factory=lambda: {})", {("A", "made", "mapping", True)}),
        ("made: dict[int, int] | None = None", {("A", "made", "mapping", True)}),
        ("made: 'set[int]'", {("A", "made", "set", True)}),
        ("def f(self):\n    self.made = set()", {("A", "made", "set", True)}),
        ("def f(self):\n    self.made = {k: 0 for k in x}", {("A", "made", "mapping", False)}),
        ("def f(self, x: dict[int, int]):\n    self.made = x", {("A", "made", "mapping", True)}),
        ("def f(self, x: int):\n    self.made = x", set()),
        ("def f(self):\n    made = {}\n    made[0] = 1", set()),
        ("def f(self, x):\n    x.made = {}", {("x", "made", "mapping", True)}),
        ("@lru_cache\ndef f(x): ...", {("A", "f", "function", True)}),
        ("@functools.lru_cache(maxsize=3)\ndef f(x): ...", {("A", "f", "function", True)}),
        ("@cached_property\ndef f(self): ...", {("A", "f", "property", True)}),
        ("class B:\n    made = {}", {("A.B", "made", "mapping", True)}),
    ],
)
def test_attributes(text, expected):
    assert found("class A:\n" + textwrap.indent(text, "    ")) == expected


@pytest.mark.parametrize(
    "change",
    [
        "self.made[1] = 2",
        "del self.made[1]",
        "self.made.pop(1)",
        "self.made |= {}",
        "made = self.made; made[1] = 2",
        "a, made = 1, self.made; made.update(x)",
        "other.made.clear()",
    ],
)
def test_what_is_changed_in_whatever_way_has_grown(change):
    text = f"""
    class A:
        def __init__(self):
            self.made = {{k: 0 for k in "ab"}}

        def change(self, other):
            {change}
    """
    assert found(text) == {("A", "made", "mapping", True)}


def test_a_change_by_another_module_counts():
    assert found("made = {1: 2}") == {("", "made", "mapping", False)}
    assert found("made = {1: 2}", elsewhere=frozenset({"made"})) == {("", "made", "mapping", True)}


def test_closures_keep_what_they_change():
    text = """
    def f():
        kept, other = 0, 1
        known = {}
        local = {}
        local[0] = 1

        def g(x):
            known[x] = 1
            own = {}
            own[x] = 2

        return g
    """
    assert found(text) == {("f", "known", "mapping", True)}


def test_what_is_made_at_its_first_use_is_found():
    text = """
    class A:
        def __init__(self):
            self._one = self._two = self._three = None

        def one(self):
            if self._one is None:
                self._one = compute()
            return self._one

        def two(self):
            found = self._two
            if found is None:
                found = self._two = compute()
            return found

        def three(self):
            if self._three is None:
                return 3
            self._three = None

    def four():
        global _four
        _four = 4
    """
    assert found(text) == {
        ("A", "_one", "lazy", True),
        ("A", "_two", "lazy", True),
        ("", "_four", "lazy", True),
    }


def test_the_package_is_read():
    names = {container.full for container in containers("jgpu.device", "jgpu.wire.vocabulary")}
    assert {"jgpu.device.recording.dispatch.plans", "jgpu.wire.vocabulary.refusal"} <= names
    grown = {c.name for c in containers("jgpu.device.recording.dispatch") if c.grown}
    assert "_SPECIAL" not in grown
