"""Proof of forgetting: oracles and metrics brought together in one frozen result."""
