"""The child's side of a run. Only backends import it."""
