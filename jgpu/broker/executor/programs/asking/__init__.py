"""Asking the device itself what an op returns or would choose."""
