"""What makes a Jupyter kernel one that shares the GPU: provisioner, kernelspec, host-wide routing.

Runs in the Jupyter server's process, so it imports no torch and none of the broker.
"""

__all__: list[str] = []
