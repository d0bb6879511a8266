"""The original archives of public datasets, read into tables: one file a format."""
