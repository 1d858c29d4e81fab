"""Servers for tests and campaigns: with a user per role, with a recorded history, and a proxy in front of one."""
