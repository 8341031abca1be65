"""Sparse tensors, made of dense ones on the device."""
