"""The processes of one host, and what connects them."""

from drawings.canvas import Canvas, Scheme

__all__ = ["drawn"]


def drawn(scheme: Scheme) -> Canvas:
    """Users' processes on the left, the broker's on the right, the device below it."""
    canvas = Canvas(scheme, 780, 404)
    canvas.box(20, 12, 260, 52, "JupyterHub and its page,\nadministrators' commands")
    canvas.box(20, 112, 260, 52, "a Jupyter server with\nthe provisioner and jgpu.labserver")
    canvas.box(20, 222, 260, 52, "a notebook's kernel: PyTorch\nand jgpu.device, no GPU", "blue")
    canvas.box(20, 340, 260, 52, "jgpu run -- python train.py:\nthe same", "blue")

    canvas.box(500, 12, 260, 96, fill="green")
    canvas.text(
        630,
        60,
        "the broker's control process:\nwho may connect, seats, quotas,\nledger, supervision",
    )
    canvas.box(500, 196, 260, 96, fill="green")
    canvas.text(
        630, 244, "one executor per device:\nsessions, programs, memory,\nlanes; jgpu.sched decides"
    )
    canvas.box(500, 340, 260, 52, "the device: one context", "rose")

    canvas.arrow(280, 38, 500, 38)
    canvas.text(390, 28, "admin.sock", quiet=True)
    canvas.arrow(280, 126, 500, 70)
    canvas.text(372, 82, "seats, reports", quiet=True)
    canvas.arrow(150, 164, 150, 222)
    canvas.text(158, 193, "starts", align="left", quiet=True)
    canvas.arrow(280, 234, 500, 94)
    canvas.text(372, 152, "Hello", quiet=True)
    canvas.arrow(280, 254, 500, 232, both=True)
    canvas.text(400, 228, "programs and data", quiet=True)
    canvas.arrow(280, 362, 500, 268, both=True)
    canvas.text(416, 330, "by socket and\nshared memory", quiet=True, align="left")
    canvas.arrow(630, 108, 630, 196)
    canvas.text(638, 152, "hands over the\nconnection", align="left", quiet=True)
    canvas.arrow(630, 292, 630, 340, both=True)
    return canvas
