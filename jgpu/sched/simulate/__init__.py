"""The scheduler under a virtual clock: what policies, lanes and memory would do for a workload.

Covers jobs made of iterations (`jobs`, `loop`), published traces (`traces`), generated arrivals
(`arrivals`) and recordings of a live broker (`replay`), run by `engine` on simulated devices. The
core is the one that decides live; only the clock, the device and the clients are simulated.
"""

__all__: list[str] = []
