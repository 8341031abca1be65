"""The page of the shared GPU in a hub: who runs, who waits, who may have how much, and who used it.

A service of the hub, unprivileged, and no part of the broker's: it speaks to the broker over the
administrators' socket, as `jgpu status` does, and to visitors' browsers through the hub's proxy. It
may be ended and started at any time; nothing but its visitors' cookies depends on it.

Invariant: what the broker tells about all of its users is cut to what one visitor may see before
anything is rendered (`views`), so no template can show more.
"""

__all__: list[str] = []
