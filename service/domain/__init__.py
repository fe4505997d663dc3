"""Pure rules of predictions: no I/O, no clock, no third-party code."""
