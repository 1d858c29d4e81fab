"""Make the wheel and the source distribution; `pyproject.toml` names what is here."""
