"""The hub ends in mid-lesson, and starts again: nobody's numbers know of it."""

import signal

import pytest
from lab import Lab, until
from lessons import losses_alone, trained

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

STEPS = 4_000


@pytest.mark.timeout(300)
def test_training_goes_on_while_the_hub_is_gone_and_its_numbers_are_the_native_ones():
    with Lab({"user1": ["class"]}, "--lanes", "1") as lab:
        lab.start_servers("user1")
        kernel = lab.kernel("user1")
        kernel.until_printed(kernel.begin(trained(STEPS)), "begun")
        for number in (signal.SIGTERM, signal.SIGKILL):
            lab.end_hub(number)
            before = lab.sessions()["user1"].iterations
            until(lambda: lab.sessions()["user1"].iterations > before + 50, "work without a hub")  # noqa: B023
            lab.start_hub()
            assert lab.report().users[0].groups == ("class",)
        kernel.connect()
        assert kernel.ok("print([x.hex() for x in losses])") == losses_alone(STEPS)
        lab.stop_server("user1")
        until(lambda: not lab.sessions(), "the session's end")
