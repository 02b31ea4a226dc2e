"""samestep's framework-neutral side: it plans, measures, judges and reports, and imports no framework."""

__version__ = "0.1.0"
