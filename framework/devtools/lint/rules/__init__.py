"""Rules by subject; ``framework.devtools.lint.linter`` lists all."""
