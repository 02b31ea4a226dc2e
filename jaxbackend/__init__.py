"""The JAX side: flax.nnx models, optax updates, one pure jitted training step."""
