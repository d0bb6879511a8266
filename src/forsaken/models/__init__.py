"""Networks, one training loop and one prediction pass."""
