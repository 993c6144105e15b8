"""Tables of plans, predictions and shipped data: pure functions from data to rich renderables."""
