"""Running products on devices: where, how often, how long, and whether the result is right."""
