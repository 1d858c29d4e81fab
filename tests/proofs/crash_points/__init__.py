"""Crash-point enumeration: a process of the framework is killed, or cut off from Redis, at each single command that it sends."""
