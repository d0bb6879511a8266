"""SISA: sharded, isolated, sliced and aggregated training, and its two readings with differential privacy."""
