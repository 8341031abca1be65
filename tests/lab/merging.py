"""What a page does with a patch."""


def merged(change, target):
    """What RFC 7396 (section 2) makes of a target; the target stays as it is."""
    if not isinstance(change, dict):
        return change
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(value, made.get(key))
    return made
