"""Rules by subject; ``framework.devtools.lint.registry`` lists all."""
