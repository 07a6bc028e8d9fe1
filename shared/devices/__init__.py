"""The unified device model: identity (`keys`), what a device is (`model`), what it reads now (`readings`)."""
