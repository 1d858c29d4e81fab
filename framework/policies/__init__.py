"""Policies that stop, delay or change a job before its run: locks, limits, pauses, deferrals, replicas. None imports another."""
