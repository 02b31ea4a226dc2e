"""What is measured beside time: memory, and later telemetry and energy."""
