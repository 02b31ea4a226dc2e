"""`samestep fit`: how large a batch trains, and how little memory a batch needs."""
