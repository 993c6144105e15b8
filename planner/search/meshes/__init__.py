"""The search over pipelines whose stages differ in tensor and data parallelism."""
