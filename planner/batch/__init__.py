"""Many problems at once: a jobs file in, a durable store out, on one machine or on a Ray cluster."""
