"""Where models are trained and kept by other libraries; each file needs an extra of its own."""
