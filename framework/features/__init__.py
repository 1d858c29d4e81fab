"""The features: one folder for each, with everything of it that is not the way of a job. ``order.py`` lists them."""
