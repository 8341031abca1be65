"""When a cell is told for whom it waits."""

from jgpu.device.client.notebook.waits import Waits


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_wait_that_lasts_is_told_once_a_cell():
    clock = Clock()
    waits = Waits(clock)
    assert waits.timeout_s() == 3600.0
    waits.begun(("user2",))
    assert (waits.timeout_s(), waits.sentence()) == (2.0, "")
    clock.now += 2.0
    assert waits.sentence() == (
        "waiting for memory or a turn on the shared device, behind 1 user (`jgpu status` shows "
        "more)."
    )
    assert waits.sentence() == ""
    waits.begun(("user3",))
    clock.now += 5.0
    assert waits.sentence() == ""
    waits.forget()
    waits.begun(("user1", "user2", "user3"))
    clock.now += 2.0
    assert "behind 3 users" in waits.sentence()


def test_a_wait_that_is_over_soon_is_not_told():
    clock = Clock()
    waits = Waits(clock)
    waits.begun(("user2",))
    clock.now += 1.0
    waits.over()
    clock.now += 5.0
    assert (waits.sentence(), waits.timeout_s()) == ("", 3600.0)


def test_a_script_without_cells_is_told_again_after_a_minute():
    clock = Clock()
    waits = Waits(clock)
    for seconds in (2.0, 60.0, 2.0):
        waits.begun(("user1", "user2"))
        clock.now += seconds
        assert ("behind 2 users" in waits.sentence()) == (seconds == 2.0)
