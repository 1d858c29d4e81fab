"""What ``scripts/chaos`` is made of. It knows the framework by its public face only: commands, settings, documented keys."""
