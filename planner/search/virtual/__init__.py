"""Plans with several virtual stages on each pipeline rank: their bounds, their openings, their annealing."""
