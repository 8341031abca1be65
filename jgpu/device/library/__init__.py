"""`torch.library` on the shared device: kernels that a notebook registers run for its tensors."""

__all__: list[str] = []
