"""Records, predictions and encoders on disk, written whole or not at all."""
