"""What a chip computes: FLOP, bytes moved, measured latencies, and the host that launches it."""
