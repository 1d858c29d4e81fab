"""Switches that operators set while everything runs: what they say, and where they come from."""
