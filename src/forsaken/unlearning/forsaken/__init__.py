"""The paper's method, and where it goes beyond the paper."""
