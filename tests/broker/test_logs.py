"""What clients repeat does not fill a broker's log."""

import logging

import pytest

from jgpu.broker.logs import Repetitions


class Log:
    """A logger of its own behind the filter, and a clock that stands still."""

    def __init__(self):
        self.now = 0.0
        self.lines = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        handler.addFilter(Repetitions(lambda: self.now))
        self.logger = logging.Logger("jgpu.broker", logging.INFO)
        self.logger.addHandler(handler)


@pytest.fixture
def log():
    return Log()


def test_a_hundred_lines_of_a_kind_are_kept_each_minute_and_the_rest_is_counted(log):
    for pid in range(5000):
        log.logger.warning("pid %d refused: %s", pid, "why")
    assert log.lines == [f"pid {pid} refused: why" for pid in range(100)]
    log.now = 60
    log.logger.warning("pid %d refused: %s", 1, "why")
    log.logger.warning("pid %d refused: %s", 2, "why")
    assert log.lines[100:] == [
        "pid 1 refused: why (4900 more like this were left out before.)",
        "pid 2 refused: why",
    ]


def test_other_kinds_are_kept_beside_a_flood(log):
    for pid in range(200):
        log.logger.info("pid %d is gone", pid)
    log.logger.error("the executor ended")
    log.logger.warning("pid %d is gone", 7)  # told apart by its weight
    assert log.lines[100:] == ["the executor ended", "pid 7 is gone"]


def test_kinds_without_end_are_bounded(log):
    for number in range(10_000):
        log.logger.info(f"{number}")  # as many kinds as there are lines
    assert len(log.lines) == 512 + 100
