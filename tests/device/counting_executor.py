"""An executor that notes for which ops it interprets runs of programs that it knows.

    python counting_executor.py FILE ...    (the rest as `jgpu.broker.executor` takes it)

A run is interpreted until all ops of the program were seen once and its function is compiled, and
after each op before which it halts. At the sixth interpreted run of a program whose ops were seen,
`FILE` gets the ops that the program waits at, one name a line; `no op` if it has none.
"""

import sys
from collections import defaultdict
from pathlib import Path

from jgpu.broker.executor import process
from jgpu.broker.executor.programs.definition import Definition

#: runs during the compilation of a function
_MEANWHILE = 5


def noting(walk, file):
    """`Definition._walk`, which every interpreted run calls, once or in several parts."""
    works = defaultdict(set)

    def noted(definition, walker, start, context, **how):
        seen = works[definition.hash]
        if not definition._unseen and context.work not in seen:
            seen.add(context.work)
            if len(seen) == _MEANWHILE + 1:
                waiting = [step.info.name for step in definition.plan.steps if step.waits]
                with file.open("a") as told:
                    told.writelines(f"{name}\n" for name in waiting or ["no op"])
        return walk(definition, walker, start, context, **how)

    return noted


if __name__ == "__main__":
    Definition._walk = noting(Definition._walk, Path(sys.argv[1]))
    sys.exit(process.main(sys.argv[2:]))
