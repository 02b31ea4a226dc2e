"""What is measured and how: blocks, memory, energy, communication, the machine's state; faults planted to prove it."""
