"""A third backend, in pure NumPy: it trains digits-cnn and mnist-cnn, and shows what a backend must bring.

It registers through the entry-point group `samestep.backends` (`compare.settings.backends`), as an installed package
does.
"""
