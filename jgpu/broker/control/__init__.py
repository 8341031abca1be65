"""The control process: who may connect, which executor has whom, what `jgpu status` says.

It knows no tensor and imports no torch: after the handshake a session's bytes go between client
and executor alone. `registry` decides (pure), `server` does; `app` is the administrator's side.

Whatever arrives at the socket, this process lives on, and no other client notices.
"""

__all__: list[str] = []
