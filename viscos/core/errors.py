"""The one error that stands for bad input."""


class InputError(ValueError):
    """Something the caller gave cannot be used; the message says what was seen and what to do, in one line."""
