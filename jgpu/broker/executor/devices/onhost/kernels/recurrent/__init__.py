"""Recurrent layers as cuDNN has them: one op for all layers, directions and steps."""

__all__: list[str] = []
