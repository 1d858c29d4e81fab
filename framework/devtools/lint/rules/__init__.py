"""The rules, by what they look at; ``framework.devtools.lint.registry`` is the table of all."""
