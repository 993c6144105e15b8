"""Pure functions of data: FLOP, bytes, seconds. No solver, no search."""
