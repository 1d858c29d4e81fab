"""Lint of worker code, beside the life of a job: read from the source without importing it, rule by rule, with waivers."""
