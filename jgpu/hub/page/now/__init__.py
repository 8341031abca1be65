"""The view "Now"."""
