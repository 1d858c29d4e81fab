"""Protect what is stored of jobs."""
