"""What a request means, what of it is done, and how long the rest takes. Imports no torch."""
