"""Keep compiled programs and certificates from run to run, in a folder that only its user may change."""
