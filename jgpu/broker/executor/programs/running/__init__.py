"""A plan being run: compiled, or step by step."""
