"""What a kernel sends for repeated steps, kept in a file; in a process with a seat.

    python sending.py kept '{"step": "mlp", "times": 150, "file": "messages"}'

The file holds the messages in their order, encoded as on the wire, without the frames around them:
`replaying.py` numbers them anew. Prints how many there are, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from training import Training, small_mlp

from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import Hello


def kept(step: str, times: int, file: str) -> dict[str, int]:
    """Keep what so many steps send: of an MLP under Adam, or a number that is waited for."""
    sent: list[bytes] = []
    encode = FrameWriter.encode

    def noted(self: FrameWriter, message: msgspec.Struct, seen: int) -> bytes:
        if not isinstance(message, Hello):  # which is the broker's
            sent.append(msgspec.msgpack.encode(message))
        return encode(self, message, seen)

    FrameWriter.encode = noted  # type: ignore[method-assign]
    torch.set_num_threads(1)
    if step == "mlp":
        training = Training(small_mlp, 64, "cuda")
        for _ in range(times):
            training.step()
    else:
        a = torch.ones(100, device="cuda")
        for _ in range(times):
            a.sum().item()
    torch.cuda.synchronize()
    Path(file).write_bytes(msgspec.msgpack.encode(sent))
    return {"messages": len(sent)}


if __name__ == "__main__":
    found: dict[str, Any] = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(found))
