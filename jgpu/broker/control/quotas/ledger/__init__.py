"""Who used what: counted, kept, written, and asked for later."""

__all__: list[str] = []
