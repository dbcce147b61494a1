"""Every choice a user can make, and the named presets and recipes."""
