"""What a tensor on the device is to a notebook: printed, saved, pickled, part of a module."""

__all__: list[str] = []
