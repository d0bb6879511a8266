"""What there is to learn and to forget."""
