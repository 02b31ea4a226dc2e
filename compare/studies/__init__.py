"""Lists of comparisons: scaling over devices, the search for the largest batch, and the self-test."""
