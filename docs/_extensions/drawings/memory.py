"""The safety condition of memory as a bar: what sessions keep, and what lanes may need."""

from dataclasses import dataclass

from drawings.canvas import Canvas, Scheme

__all__ = ["drawn"]

_GIB = 41.0
_LEFT, _BAR, _TALL = 20, 96, 46


@dataclass(frozen=True, slots=True)
class _Session:
    """One of the example's, in GiB; `lane` counts from 0."""

    name: str
    model: float
    kept: float
    peak: float
    lane: int
    suspended: bool = False


_SESSIONS = (
    _Session("1", 1.5, 1.0, 3.0, 0),
    _Session("2", 1.0, 1.5, 2.0, 0),
    _Session("3", 1.5, 0.8, 2.5, 1),
    _Session("4", 1.0, 0.8, 1.5, 1, suspended=True),
)
_CAPACITY = 18.0


def drawn(scheme: Scheme) -> Canvas:
    """One example: four sessions in two lanes, one of them suspended in mid-iteration."""
    canvas = Canvas(scheme, 780, 330)
    formula = (
        r"$\sum_i\,(P_i + K_i)\;+\;\sum_l\,(\max_{j\,in\,l} T_j + T_{suspended\;in\;l})\;\leq\;C$"
    )
    canvas.text(390, 26, formula, size=14)
    x = _lanes(canvas, _kept(canvas))
    end = _LEFT + _CAPACITY * _GIB
    assert x < end
    canvas.text((x + end) / 2, _BAR + _TALL / 2, "free", quiet=True)
    canvas.line(_LEFT, _BAR + _TALL, end, _BAR + _TALL)
    canvas.line(end, _BAR - 8, end, _BAR + _TALL + 8)
    canvas.text(end, _BAR - 18, "C", weight="bold")
    _key(canvas)
    return canvas


def _kept(canvas: Canvas) -> float:
    """Model and kept memory of every session, side by side; where they end."""
    x: float = _LEFT
    for session in _SESSIONS:
        begin = x
        for letter, size, fill in (("P", session.model, "blue"), ("K", session.kept, "green")):
            canvas.box(x, _BAR, size * _GIB, _TALL, f"${letter}_{session.name}$", fill)
            x += size * _GIB
        canvas.text((begin + x) / 2, _BAR - 14, f"session {session.name}", quiet=True)
    return x


def _lanes(canvas: Canvas, x: float) -> float:
    """Each lane's largest peak and what is suspended in it, all peaks below; where they end."""
    for lane in (0, 1):
        begin, members = x, [session for session in _SESSIONS if session.lane == lane]
        largest = max(session.peak for session in members)
        canvas.box(x, _BAR, largest * _GIB, _TALL, "largest T", "amber")
        for row, session in enumerate(members):
            y = _BAR + _TALL + 14 + 30 * row
            fill = "rose" if session.suspended else "amber"
            canvas.box(x, y, session.peak * _GIB, 24, f"$T_{session.name}$", fill)
        x += largest * _GIB
        for session in members:
            if session.suspended:
                canvas.box(x, _BAR, session.peak * _GIB, _TALL, f"$T_{session.name}$", "rose")
                x += session.peak * _GIB
        canvas.text((begin + x) / 2, _BAR - 14, f"lane {lane + 1}", quiet=True)
    return x


def _key(canvas: Canvas) -> None:
    said = (
        ("blue", "P: the model and the optimizer's state"),
        ("green", "K: kept between iterations, as far as it is not spilled"),
        ("amber", "T: what an iteration needs on top at its peak; a lane runs one at a time"),
        ("rose", "T of an iteration that is suspended: it keeps its room while another runs"),
    )
    for row, (fill, text) in enumerate(said):
        y = 236 + 24 * row
        canvas.box(_LEFT, y - 8, 22, 16, fill=fill)
        canvas.text(_LEFT + 32, y, text, align="left")
