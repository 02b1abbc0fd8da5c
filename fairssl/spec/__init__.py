"""What a run is, as data, its keys, and the grammar of methods."""
