"""A device of kind `cuda` without a GPU, for tests: what CUDA does, computed on the host."""

__all__: list[str] = []
