"""The parts of `compare.pytest_plugin`. pytest loads them at every start, so they import nothing heavy then."""
