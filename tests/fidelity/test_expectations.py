"""What is known not to be equal: kept with reasons, compared, and told to people."""

from collections import Counter
from pathlib import Path

import pytest

from jgpu.bench.fidelity.cases import Case, CaseResult, chosen
from jgpu.bench.fidelity.command import put_right
from jgpu.bench.fidelity.expectations import UNEXPLAINED, Expectation, Expectations, page

ROOT = Path(__file__).parents[2]
ADD = Case("op", "add", "float32")


def found(*findings, case=ADD, equal=5):
    made = CaseResult(case, samples=3)
    made.counts["equal"] = equal
    for finding in findings:
        made.add(*finding)
    return made


@pytest.fixture
def known():
    return Expectations(
        "2.13.0",
        {("op add", "close"): Expectation("another formula", Counter({"float32 gradient": 2}))},
        {"op": {"cases": 1, "samples": 3, "equal": 5, "close": 2}},
    )


def test_what_is_known_is_not_worse(known):
    close = [("gradient", k, "close", "differs") for k in range(2)]
    assert known.worse(found(*close)) == []
    assert known.worse(found()) == []


@pytest.mark.parametrize(
    "finding",
    [
        ("forward", 0, "close", "differs"),
        ("gradient", 0, "refused", "no"),
        ("gradient", 0, "wrong", "other"),
        ("sample", 1, "hung", "no word"),
    ],
)
def test_another_variant_or_outcome_is_worse(known, finding):
    (sentence,) = known.worse(found(finding))
    assert sentence.startswith(f"op add float32: {finding[2]} 1 times (float32 {finding[0]}), 0")


def test_more_of_the_same_is_worse(known):
    close = [("gradient", k, "close", "differs") for k in range(3)]
    (sentence,) = known.worse(found(*close))
    assert sentence == ("op add float32: close 3 times (float32 gradient), 2 expected: differs")


def test_another_dtype_is_another_matter(known):
    bad = found(("gradient", 0, "close", "differs"), case=Case("op", "add", "float64"))
    assert len(known.worse(bad)) == 1


def test_native_runs_that_differ_count_for_nobody(known):
    unstable = [("out", k, "close", "native runs differ among themselves; x") for k in range(9)]
    runs = [found(*unstable)]
    assert known.worse(runs[0]) == []
    made = known.updated("2.13.0", runs)
    assert made.known["op add", "close"].unstable
    assert made.known["op add", "close"].counts.total() == 0
    by_chance = found(*[("out", k, "close", "differs") for k in range(9)])
    assert known.worse(by_chance)
    assert made.worse(by_chance) == []
    assert made.worse(found(("out", 0, "wrong", "other")))


def test_an_update_keeps_reasons_and_takes_those_of_refusals(known):
    runs = [
        found(
            ("gradient", 0, "close", "differs"),
            ("out", 0, "close", "strides"),
            ("forward", 1, "refused", "NotSupported: The shared device does not: do this."),
            ("forward", 2, "wrong", "other"),
        )
    ]
    made = known.updated("2.13.1", runs)
    assert made.torch == "2.13.1"
    assert {key: (each.why, dict(each.counts)) for key, each in made.known.items()} == {
        ("op add", "close"): ("another formula", {"float32 gradient": 1, "float32 out": 1}),
        ("op add", "refused"): ("The shared device does not: do this", {"float32 forward": 1}),
        ("op add", "wrong"): (UNEXPLAINED, {"float32 forward": 1}),
    }
    assert made.totals == {
        "op": {"cases": 1, "samples": 3, "equal": 5, "close": 2, "refused": 1, "wrong": 1}
    }


def test_a_file_says_the_same_when_read_again(known, tmp_path):
    path = tmp_path / "known.json"
    known.known["op lstsq", "close"] = Expectation("from run to run", Counter(), unstable=True)
    known.write(path)
    again = Expectations.read(path)
    assert (again.torch, again.known, again.totals) == (known.torch, known.known, known.totals)


def test_the_page_tells_totals_and_gathers_reasons(known):
    known.known["op mul", "close"] = Expectation("another formula", Counter({"float32 out": 1}))
    known.known["op lu", "refused"] = Expectation("use torch.linalg", Counter({"float32 out": 1}))
    lines = page(known).splitlines()
    assert "| operators | 1 | 3 | 7 | 5 | 2 | 0 | 0 | 0 | 0 |" in lines
    assert "- `add` (2), `mul` (1): another formula." in lines
    assert "- `lu` (1): use torch.linalg." in lines
    assert "## Known to be wrong" not in lines


def test_cases_are_chosen_by_name_type_and_turn():
    cases = [Case("op", f"add{k}", dtype) for k in range(6) for dtype in ("float32", "bool")]
    assert [c.entry for c in chosen(cases, only="op add", dtype="bool", every=3)] == [
        "add0",
        "add3",
    ]
    assert [c.entry for c in chosen(cases, dtype="bool", every=3, first=1)] == ["add1", "add4"]
    assert not list(chosen(cases, only="module"))


def test_every_known_difference_has_its_reason():
    known = Expectations.read().known
    assert known
    assert [key for key, each in known.items() if UNEXPLAINED in each.why] == []


def test_nothing_known_is_wrong_or_hangs():
    outcomes = {outcome for _, outcome in Expectations.read().known}
    assert outcomes <= {"close", "refused"}


def test_the_page_is_the_one_that_the_list_makes():
    assert (ROOT / "docs" / "fidelity.md").read_text() == page(Expectations.read())


def test_what_the_device_put_right_is_told_by_outputs_and_entries():
    one, again, other = (found(case=Case("op", entry, dtype)) for entry, dtype in (
        ("add", "float32"), ("add", "bool"), ("mul", "float32"),
    ))  # fmt: skip
    one.geometry.update(restrided=3, asked=1000)
    again.geometry.update(restrided=2, reshaped=1)
    assert put_right([one, again, other]) == (
        "Geometry learnt at a first run: 5 outputs in 1 entries restrided, "
        "1 outputs in 1 entries of another shape or type. "
        "Asked of the device beforehand: 1,000 ops."
    )
    assert again.as_json()["geometry"] == {"restrided": 2, "reshaped": 1}
    assert other.as_json()["geometry"] == {}
