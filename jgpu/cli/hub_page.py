"""Show a hub's users the shared GPU, as a service of the hub.

All options are explained by `jgpu hub-page --help-all`.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu hub-page`; returns when the page has ended."""
    from jgpu.hub.page.app import launch

    return launch(arguments)
