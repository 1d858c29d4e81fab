"""Configuration: files under ``config/``, overridden by the environment, validated whole. Stands beside ``wire``."""
