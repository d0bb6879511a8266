"""The kinds of models that a job can read and write: one file a kind."""
