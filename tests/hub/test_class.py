"""A class at work: users with uids of their own train at once, by their groups' weights."""

import pytest
from lab import Lab
from lessons import losses_alone, trained

from jgpu.wire.asking import ask
from jgpu.wire.messages import SetQuota

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

USERS = {"user1": ["class"], "user2": ["class"], "user3": ["class", "tutors"]}
#: device time that is looked at, in seconds: hundreds of turns
WINDOW_S = 6.0
ENDLESS = 10_000_000


@pytest.mark.timeout(300)
def test_weights_of_groups_hold_while_a_class_trains_and_numbers_are_as_natively():
    with Lab(USERS, "--lanes", "1", properties={"tutors": {"jgpu": {"weight": 2}}}) as lab:
        lab.start_servers(*USERS)
        kernels = {user: lab.kernel(user) for user in USERS}
        assert {
            k.ok(trained(101) + "print([x.hex() for x in losses])") for k in kernels.values()
        } == {f"begun\n{losses_alone(101)}"}
        cells = {user: kernel.begin(trained(ENDLESS)) for user, kernel in kernels.items()}
        for user, kernel in kernels.items():
            kernel.until_printed(cells[user], "begun")
        found = lab.shares(WINDOW_S)
        assert found == pytest.approx({"user1": 0.25, "user2": 0.25, "user3": 0.5}, rel=0.05)
        people = {each.name: each for each in lab.report().users}
        assert {name: set(each.groups) for name, each in people.items()} == {
            user: set(groups) for user, groups in USERS.items()
        }
        ask(lab.admin, SetQuota("user:user1", (("weight", "2"),)))
        found = lab.shares(WINDOW_S)
        assert found == pytest.approx({"user1": 0.4, "user2": 0.2, "user3": 0.4}, rel=0.05)
        for user, kernel in kernels.items():
            kernel.interrupt()
            assert kernel.end(cells[user])[1] == "KeyboardInterrupt: "
