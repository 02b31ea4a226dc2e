"""Data sets, batches and initial weights from NumPy: the same bytes for every backend."""
