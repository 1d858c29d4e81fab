"""Commands: arguments in, calls of lower layers out, an exit status back."""
