"""A plugin for suites under test (`pytest -p`): rounds count however busy the machine is. Nobody reads their times."""

import math

from compare.measure import voiding

voiding.FOREIGN_CORES = math.inf
