"""Grids that come with fairssl, as TOML."""
