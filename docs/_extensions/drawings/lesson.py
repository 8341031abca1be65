"""A cell's way from the notebook to a lane and back, as a sequence."""

from drawings.canvas import Canvas, Scheme

__all__ = ["STEPS", "drawn"]

_WIDTH, _TOP, _STEP = 860, 64, 38
_COLUMNS = {
    "notebook": (75, "the notebook's\ncell", "plain"),
    "device": (232, "jgpu.device\nin the kernel", "blue"),
    "executor": (440, "executor:\nthe pump", "green"),
    "sched": (628, "jgpu.sched:\nthe core", "amber"),
    "lane": (785, "a lane of\nthe device", "rose"),
}
#: from, to, what passes between them; with no "to" a remark on what "from" does
STEPS = (
    ("notebook", "device", "the cell begins"),
    ("device", "executor", "CellStarted"),
    ("notebook", "device", "loss = model(x)"),
    ("device", "", "each op: inferred, logged;\nPython goes on"),
    ("device", "executor", "Define (once), Run"),
    ("executor", "", "checked once, compiled once;\nforetells time and memory"),
    ("executor", "sched", "WorkArrived"),
    ("sched", "", "a lane with room;\nwhose turn it is"),
    ("sched", "executor", "Start"),
    ("executor", "lane", "launch"),
    ("notebook", "device", "loss.item()"),
    ("device", "executor", "Download; the iteration ends"),
    ("lane", "executor", "done, and how long it took"),
    ("executor", "sched", "SegmentsFinished"),
    ("sched", "", "an iteration is over:\nanother may have its turn"),
    ("executor", "device", "Downloaded"),
    ("device", "notebook", "0.37"),
    ("notebook", "device", "the cell ends"),
    ("device", "executor", "CellEnded"),
)


def drawn(scheme: Scheme) -> Canvas:
    """Time goes down; every arrow is one message or call."""
    bottom = _TOP + _STEP * (len(STEPS) + 0.6)
    canvas = Canvas(scheme, _WIDTH, bottom + 8)
    for x, name, fill in _COLUMNS.values():
        canvas.line(x, _TOP, x, bottom, style=":")
        canvas.box(x - 66, 8, 132, 44, name, fill)
    for number, (start, end, text) in enumerate(STEPS, 1):
        y = _TOP + _STEP * number
        x, _, fill = _COLUMNS[start]
        if not end:
            canvas.box(x - 84, y - 17, 168, 34, fill=fill)
            canvas.text(x, y, text, size=9.5)
            continue
        there = _COLUMNS[end][0]
        canvas.text((x + there) / 2, y - 9, text, size=10)
        canvas.arrow(x, y, there, y)
    return canvas
