"""Run the daemon that shares this host's GPU between notebooks.

All options are explained by `jgpu broker --help-all`, and in the file that `--generate-config`
writes.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu broker`; returns when the broker has ended."""
    from jgpu.broker.control.configuration.app import launch

    return launch(arguments)
