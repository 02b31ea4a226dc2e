"""What a person reads: one file a format, each made from the result object alone."""
