"""A plugin for suites under test (`pytest -p`): rounds count however busy the machine is. Nobody reads their times."""

import math

from compare.execution import round_validity

round_validity.FOREIGN_CORES = math.inf
