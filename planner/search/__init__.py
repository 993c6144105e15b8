"""Outer choices, their bounds, and the best-first search that keeps incumbent and bound."""
