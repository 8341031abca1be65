"""The line magic `%jgpu`: reads the word, and prints what is known or what was done.

Says its sentence where something cannot be known or done; raises for what nobody expects alone.
"""

import sys
from collections.abc import Callable
from typing import Final

from jgpu.device.magics import memory, release, state
from jgpu.errors import JgpuError

__all__ = ["run"]

_WORDS: Final[dict[str, Callable[[], str]]] = {
    "": state.line,
    "memory": memory.table,
    "memory all": memory.whole_table,
    "release": release.release,
}


def run(line: str = "") -> None:
    """What the shared GPU does for this notebook.

    %jgpu           one line: whether the notebook runs, waits or rests on the GPU, what memory
                    it has there of how much, and what device time it used
    %jgpu memory    the largest tensors on the GPU, by the names of the variables that hold them,
                    or by what else keeps them there; `%jgpu memory all` lists each of them
    %jgpu release   gives GPU memory back: what failed cells left behind is dropped, and what is
                    not the model goes to the host until the notebook computes with it again; every
                    variable stays as it is
    """
    words = " ".join(line.split())
    does = _WORDS.get(words)
    if does is None:
        text = (
            f"%jgpu does not know {_quoted(words)}. There are: %jgpu, %jgpu memory, "
            "%jgpu memory all and %jgpu release; %jgpu? explains them."
        )
    else:
        try:
            text = does()
        except JgpuError as error:
            text = f"GPU: {error}"
            if error.advice and error.advice not in text:
                text = f"{text} {error.advice}"
    sys.stdout.write(f"{text}\n")


def _quoted(words: str) -> str:
    """What was typed, not more of it than tells what was meant."""
    return repr(words if len(words) <= 40 else f"{words[:40]}…")
