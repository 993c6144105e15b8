"""Measured runs beside their predictions: reading, scoring, anchoring."""
