"""What a page of the dashboard is made of: the caller and its roles, the page, its actions, and what it may read.

A feature brings its pages by its record (``Feature.pages``). ``framework.dashboard`` serves them.
"""
