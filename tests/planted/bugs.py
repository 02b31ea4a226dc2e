"""The bugs that the certificate must catch: name, side, workload where it matters, and the tensor to be named first."""

from tests.planted import layer_bugs, training_bugs

BUGS = (*layer_bugs.BUGS, *training_bugs.BUGS)
