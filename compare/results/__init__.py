"""The result file: reading, writing, its schema, and what follows from its samples."""
