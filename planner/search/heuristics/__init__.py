"""Good plans without proof: first ones, better splits of the layers, annealing."""
