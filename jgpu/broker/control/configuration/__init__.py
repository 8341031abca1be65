"""What the administrator writes: traitlets in, frozen settings out."""
