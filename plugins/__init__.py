"""The plugins that come with fairssl: one file, one name.

Found through the entry point `fairssl.plugins`, like anybody's; the core imports none of them by name.
"""
