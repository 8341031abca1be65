"""Hard limits of the protocol. Both ends use the same numbers; a peer that passes one is broken."""

from typing import Final

__all__ = [
    "ARENA_BYTES",
    "INLINE_BYTES",
    "LEAST_STEP_S",
    "MAX_BUFFERS",
    "MAX_DIMS",
    "MAX_EVENTS",
    "MAX_FRAME_BYTES",
    "MAX_GENERATORS",
    "MAX_GEOMETRIES",
    "MAX_GROUPS",
    "MAX_LAYERS",
    "MAX_LIST",
    "MAX_NAME",
    "MAX_OPS",
    "MAX_REFUSED",
    "MAX_SIZE",
    "MAX_SLOTS",
    "MAX_TEXT",
    "MAX_WANTED",
    "MAX_WEIGHTS",
    "MAX_WIDTH",
    "OLDEST_PROTOCOL",
    "PROTOCOL",
    "REPORT_AGE_S",
    "WANTED_BYTES",
]

#: Version of the protocol that this code speaks, and the oldest of clients that a broker serves.
#: What changes without a new one, and what does not: `tests/wire/golden_frames.py`.
PROTOCOL: Final = 2
OLDEST_PROTOCOL: Final = 1
#: Longest frame payload, in bytes. Tensor bytes beyond INLINE_BYTES travel in the arena.
MAX_FRAME_BYTES: Final = 4 << 20
#: Tensor bytes up to this many travel inside the frame.
INLINE_BYTES: Final = 32 << 10
#: Size of a session's shared-memory arena, in bytes, half for uploads, half for downloads.
ARENA_BYTES: Final = 64 << 20
#: Most ops, slots and distinct geometries of one program.
MAX_OPS: Final = 4096
MAX_SLOTS: Final = 65536
MAX_GEOMETRIES: Final = 65536
#: Most buffers and random number generators of one session: what the executor keeps of them takes
#: memory of the host. A client refuses the one that would be too many where it is made.
MAX_BUFFERS: Final = 1 << 20
MAX_GENERATORS: Final = 1 << 15
#: Most values that a run tells unasked, and the bytes of the largest.
MAX_WANTED: Final = 8
WANTED_BYTES: Final = 64
#: Most events that are told at once, and the shortest step by which usage is told.
MAX_EVENTS: Final = 500
LEAST_STEP_S: Final = 60.0
#: Most groups of one user.
MAX_GROUPS: Final = 256
#: Most programs that are refused for what they did, and users of whom each is.
MAX_REFUSED: Final = 1024
#: Most layers and weights of a recurrent net that the device packs, and its largest width.
MAX_LAYERS: Final = 512
MAX_WEIGHTS: Final = 1024
MAX_WIDTH: Final = (1 << 31) - 1
#: Most dimensions of a tensor (torch's own kernels stop at 64).
MAX_DIMS: Final = 64
#: Largest size, stride and offset of a tensor.
MAX_SIZE: Final = (1 << 62) - 1
#: Longest list argument of an op, longest name, longest text (labels, error sentences).
MAX_LIST: Final = 16384
MAX_NAME: Final = 256
MAX_TEXT: Final = 16384
#: Seconds that a report may be old when whoever asks is given it.
REPORT_AGE_S: Final = 0.2
