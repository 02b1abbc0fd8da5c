"""fairssl: train encoders without labels and show how fair what they learned is."""

from importlib.metadata import version

__version__ = version("fairssl")
