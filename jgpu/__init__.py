"""jgpu lets many Jupyter notebooks share one GPU as if each had it.

This module is imported by every kernel of a host and holds the version alone; it must import
neither torch nor any other part of the package.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
