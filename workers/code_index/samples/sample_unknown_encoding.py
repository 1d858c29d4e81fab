# -*- coding: klingon-8 -*-
"""The first line names an encoding that does not exist."""

VALUE = 1
