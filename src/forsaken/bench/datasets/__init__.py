"""Public datasets by name: what is known of each, downloads, and the folder that they lie in."""
