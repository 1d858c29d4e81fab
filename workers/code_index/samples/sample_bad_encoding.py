# -*- coding: utf-8 -*-
"""The line below holds a Latin-1 byte, although the first line promises UTF-8."""

CITY = "Zürich"
