"""Jobs: your own model and your own data, described in one file."""
