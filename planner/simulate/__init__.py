"""The referee: what a plan really costs, event by event; knows no solver."""
