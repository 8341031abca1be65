"""What the administrator writes: traitlets in, frozen settings out."""

__all__: list[str] = []
