"""A class that trains, steered from the page: a weight that is set there is felt by who runs.

Pictures of the page meanwhile go to `docs/pictures`.
"""

import sys
import time
from pathlib import Path

import pytest
from lab import Lab, until
from lessons import trained
from results import write_result
from windows import Window, chromium, needs_chromium, page_of_a_hub

sys.path.append(str(Path(__file__).with_name("page")))

from page_parts import free_port

PICTURES = Path(__file__).parents[2] / "docs/pictures"
USERS = {"user1": ["class"], "user2": ["class"], "user3": ["class", "tutors"], "user4": ["staff"]}
STUDENTS = ("user1", "user2", "user3")
ENDLESS = 10_000_000

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.usefixtures("needs_lab"),
    needs_chromium,
]


@pytest.mark.timeout(400)
def test_a_weight_that_is_set_on_the_page_is_felt_by_notebooks_that_train(needs_lab):
    extra = page_of_a_hub(free_port())
    properties = {"tutors": {"jgpu": {"weight": 2}}}
    with (
        Lab(USERS, "--lanes", "1", extra=extra, properties=properties) as lab,
        chromium() as browser,
    ):
        lab.start_servers(*STUDENTS)
        kernels = {user: lab.kernel(user, f"{user}/lesson.ipynb") for user in STUDENTS}
        cells = {user: kernel.begin(trained(ENDLESS)) for user, kernel in kernels.items()}
        for user, kernel in kernels.items():
            kernel.until_printed(cells[user], "begun")
        window = Window.of(browser, lab, "user4").view
        assert lab.shares(4.0)["user1"] == pytest.approx(0.25, rel=0.1)
        window.get_by_role("link", name="People").click()
        window.get_by_role("link", name="Set what user1 may have").click()
        window.get_by_label("weight").fill("7")
        began = time.monotonic()
        window.get_by_label("weight").press("Enter")
        until(lambda: weight(lab, "user1") == 7.0, "the weight", 10)
        felt = time.monotonic() - began
        # What began under the old weights is over within a second: the window begins after it.
        until(lambda: time.monotonic() > began + 1.0, "a second")
        assert lab.shares(4.0) == pytest.approx(
            {"user1": 0.7, "user2": 0.1, "user3": 0.2}, rel=0.05, abs=0.01
        )
        for scheme in ("light", "dark"):
            shown = Window.of(browser, lab, "user4", color_scheme=scheme)
            shown.shows(shown.view.get_by_text("user3/lesson.ipynb").first)
            shown.view.screenshot(path=PICTURES / f"hub-page-class-{scheme}.png")
        for user, kernel in kernels.items():
            kernel.interrupt()
            assert kernel.end(cells[user])[1] == "KeyboardInterrupt: "
    write_result("class-on-the-page", {"seconds until the broker has the weight": round(felt, 3)})


def weight(lab, user):
    return next(each.weight for each in lab.report().users if each.name == user)
