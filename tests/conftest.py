"""Settings of all tests: property tests try the same examples on every run.

`pytest --hypothesis-profile=search` looks for new ones.
"""

from hypothesis import settings

settings.register_profile("exact", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("exact")
