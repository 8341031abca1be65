"""Attention as CUDA's fused kernels compute it, and torch's choice among them."""

__all__: list[str] = []
