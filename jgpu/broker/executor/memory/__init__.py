"""Who may have how many bytes, which buffers there are, and what is spilled."""
