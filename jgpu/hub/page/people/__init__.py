"""The view "People"."""
