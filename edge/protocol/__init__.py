"""Pure protocol code of the edge: standard library only, no clock, no I/O, no randomness."""
