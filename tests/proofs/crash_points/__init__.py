"""Enumerate crash points: kill a process of the framework, or cut it off from Redis, at each single command that it
sends.
"""
