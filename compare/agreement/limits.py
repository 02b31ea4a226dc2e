"""The limits of the gates (`compare.agreement.gates`)."""

SEMANTIC_LIMIT = 1e-10
SCALING_LIMIT = 1e6
PRECISION_LIMIT = 10.0
UPDATE_LIMIT, UPDATE_NOISE = 2.0, 1.25
BUFFERS = 100.0
"""How much more closely updates of buffers are held than those of parameters: they are statistics, no gradients."""
LIMITS = {"semantic": SEMANTIC_LIMIT, "scaling": SCALING_LIMIT, "precision": PRECISION_LIMIT}
