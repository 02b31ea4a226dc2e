"""What is measured and how: order and length of blocks, memory, telemetry, energy, load, and which rounds are void."""
