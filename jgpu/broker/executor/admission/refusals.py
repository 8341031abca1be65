"""Programs that are not run any more, because running them has ended executors.

The control process decides which and tells each new executor. What is told is replaced as a whole,
so that the helper threads may look while the pump takes in the next list.
"""

from jgpu.wire.messages import RefusedProgram, RefusePrograms

__all__ = ["Refusals"]


class Refusals:
    """The list of the moment."""

    def __init__(self) -> None:
        self._programs: dict[bytes, RefusedProgram] = {}
        #: whether any program is refused to anybody
        self.any = False

    def set(self, message: RefusePrograms) -> None:
        """From here on these are refused, and no others."""
        self._programs = {refused.program: refused for refused in message.programs}
        self.any = bool(self._programs)

    def of(self, user: str, program: bytes) -> RefusedProgram | None:
        """What is said of a program that may not run for `user`; None if it may."""
        refused = self._programs.get(program)
        if refused is None or (refused.users and user not in refused.users):
            return None
        return refused
