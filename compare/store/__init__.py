"""What samestep keeps from run to run: compiled programs and certificates, in a folder that only its user may change."""
