"""Methods that make a model forget: settings in the constructor, data in the call."""
