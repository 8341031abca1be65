"""The small programs: each computes the native bits, and is held to the bound for its waits."""

import json

import pytest

from jgpu.bench.programs.command import PROGRAMS, figures_of, notes_of
from jgpu.bench.programs.resources.actor_critic import Program as ActorCritic
from jgpu.cli.bench import main

#: but for a look at the loss now and then
NEVER_WAIT = ["lstm_cells", "full_batch", "loader"]


def row(name, waits, *pairs, same=True):
    found = [{"native_ms": n, "device_ms": d, "waits": waits} for n, d in pairs]
    return {"name": name, "pairs": found, "compared": 9, "bit_identical": same}


def test_who_waits_at_each_step_may_take_a_tenth_of_a_millisecond_a_wait_and_others_half_again():
    waiting, other, *_ = figures_of(
        [row("metric", 2.0, (1.0, 1.25), (0.5, 0.6)), row("gan", 0.1, (1.0, 1.6), (2.0, 3.2))]
    )
    assert (waiting.goal, waiting.met) == (pytest.approx(1 + 0.2 / 0.75), True)
    assert (other.goal, other.met) == (1.5, False)


def test_all_are_held_against_one_and_a_quarter_in_the_median_and_every_bit_counts():
    rows = [row("gan", 0.0, (1.0, k)) for k in (1.1, 1.2, 9.0)]
    *_, median, bits = figures_of([*rows[:-1], rows[-1] | {"bit_identical": False}])
    assert (median.value, median.goal, median.met) == (1.2, 1.25, True)
    assert (bits.value, bits.goal, bits.met) == (2, 3, False)


def test_what_is_printed_says_the_waits_and_what_they_may_cost():
    (note,) = notes_of([row("metric", 2.0, (1.0, 2.5), same=False)])
    assert "native 1.00 ms, shared 2.50 ms, 2 waits a step" in note
    assert "waits x 100 us + native: 1.20 ms" in note
    assert note.endswith("OTHER BITS")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_program_takes_its_steps_on_both_sides_to_the_same_bits(tmp_path):
    file = tmp_path / "found.json"
    few = ["--pairs", "1", "--block", "0", "--compare", "0.1", "--json", str(file)]
    assert main(["programs", *few]) == 0
    found = json.loads(file.read_text())["programs"]
    assert [each["name"] for each in found] == list(PROGRAMS)
    assert [each["name"] for each in found if not each["bit_identical"]] == []
    waits = {each["name"]: each["pairs"][0]["waits"] for each in found}
    assert [name for name, count in waits.items() if count < 1] == NEVER_WAIT


def test_a_policy_that_learns_from_one_step_stays_finite(monkeypatch):
    monkeypatch.setattr("jgpu.bench.programs.resources.actor_critic.PERIOD", 1)
    assert ActorCritic("cpu").step().isfinite()
