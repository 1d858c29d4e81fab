"""Configuration: files under ``config/``, overridden by the environment, validated as a whole."""
