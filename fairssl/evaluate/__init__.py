"""What a trained encoder is worth: features, probe, leakage, metrics."""
