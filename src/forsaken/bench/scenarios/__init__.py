"""The scenarios of the paper and some of our own: one file a kind of data, one table."""
