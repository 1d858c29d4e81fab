"""Beside the way of a job: does a new release understand the jobs of the last one, and the last one those of the new?"""
