"""References: what models that never saw a row say about it, for forgetting that no attack can tell from retraining."""
