"""The certificate: whether two contenders compute the same thing."""
