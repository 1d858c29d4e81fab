"""Fit the framework into web frameworks and SQLAlchemy. A module needs the library of its name, and only applications load it."""
