"""What the view Now says of a session that waits."""

import pytest

from jgpu.hub.page.now import why
from jgpu.hub.page.views import SOMEBODY
from jgpu.wire.report import SessionReport


@pytest.mark.parametrize(
    ("waits_on", "waits_for", "said"),
    [
        ("turn", ("user1",), "for its turn, behind user1"),
        ("memory", ("user1", SOMEBODY, SOMEBODY), "for memory, behind user1, 2 other users"),
        ("copy", (), "for a copy of its memory"),
        ("drain", (), "until the drain is over"),
        (
            "budget",
            ("user1",),
            "beyond its budget, until nobody else needs the device, behind user1",
        ),
        ("", (SOMEBODY,), f"for {SOMEBODY}"),  # another's notebook
        ("", (), ""),
    ],
)
def test_a_session_that_waits_says_why(waits_on, waits_for, said):
    assert why(SessionReport(id=1, waits_on=waits_on, waits_for=waits_for)) == said
