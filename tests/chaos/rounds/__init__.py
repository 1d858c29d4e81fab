"""Implement ``scripts/chaos``. It uses the framework by its public interface only: commands, settings, documented keys."""
