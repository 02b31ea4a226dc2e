"""`samestep scale`: how training speeds up with the number of devices, every count a comparison of its own."""
