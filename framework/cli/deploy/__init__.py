"""``deploy``: write what runs an installation on many machines, from its own configuration."""
