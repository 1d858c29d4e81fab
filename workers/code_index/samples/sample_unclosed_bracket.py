"""A bracket is opened and never closed."""

NAMES = [
    "ada",
    "grace",


def greet(name):
    return f"hello {name}"
