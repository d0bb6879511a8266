"""From saved results to pages that people read. Never touches a model."""
