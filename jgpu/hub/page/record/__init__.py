"""The views "Usage" and "Events"."""
