"""Style and script of a board's page."""
