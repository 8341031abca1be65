"""Layers, losses and products as CUDA's and cuDNN's kernels compute them."""

__all__: list[str] = []
