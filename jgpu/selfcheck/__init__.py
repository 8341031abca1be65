"""Does jgpu fit this torch? A short way through all that torch's private parts are used for.

Run as `python -m jgpu.selfcheck` by `jgpu.untried`, in processes that may abort. It says each step
before it begins, and "done", or what was wrong, at the end.
"""

__all__: list[str] = []
