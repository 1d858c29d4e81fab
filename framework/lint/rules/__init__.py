"""The rules, by what they look at; ``framework.lint.registry`` is the table of all."""
