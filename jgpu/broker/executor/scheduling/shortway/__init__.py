"""The short ways of what is known, brief and alone: done as its message is read.

Where nobody has anything to run, a session's run of a program that is known and brief by experience
(see `telling`), or its upload of a few bytes, needs no place in an order, and nobody to stop it:
the pump does it, and puts everything down behind that. Whatever is not so, or not as ever, is left
to the usual way, of which nothing has happened then.

Invariant: what is known of what went this way, anywhere, is what is known of what went the other
and was over before the next came (`tests/broker/executor/test_shortway.py` compares them).
"""

from jgpu.broker.executor.scheduling.shortway.way import ShortWay
from jgpu.broker.executor.scheduling.shortway.ways import ShortWays

__all__ = ["ShortWay", "ShortWays"]
