"""Limits and shares: what users may have, what they used, and what follows from both.

`spec` says what a quota is, `scopes` which one counts for a user, `window` and `budgets` what was
used of it, `meter` counts device time once, `store` and `ledger` keep it over restarts, `desk`
brings these together for the broker.

Nothing here ever waits for the ledger. What cannot be written is kept, said, and written later.
"""

__all__: list[str] = []
