"""The broker: a control process and an executor process per device.

`control` decides who may connect, `executor` owns a device and runs programs on it. They share
messages (`jgpu.wire`) and no memory.
"""

__all__: list[str] = []
