"""Plugins for fairssl: one of each kind that a package may offer, one file each."""

FAIRSSL_INTERFACE = 1  # what they were written for; an older fairssl refuses them in one line
