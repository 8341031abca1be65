"""From an op that torch calls to an entry of the log."""
