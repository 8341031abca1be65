"""Where this package is called by torch and IPython in place of their own functions."""

__all__: list[str] = []
