"""The log's cut into programs: runs are taken out of it, and looked up or written."""

__all__: list[str] = []
