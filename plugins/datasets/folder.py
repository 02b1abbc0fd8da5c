"""Your own images: any folder or archive, and a CSV or Parquet table with a row per image.

Every column of two values may be the target, every column of a few values, or of numbers in bins, the sensitive attribute.
Values may be missing. Splits are the table's own, or drawn. `fairssl data describe DIR --table FILE` says what it finds.
"""

from __future__ import annotations

from fairssl.api import Card, Defaults, TableConfig, TableDataset


class Folder(TableDataset):
    """Images of the user's with a table of labels; `fairssl show dataset folder` lists how the table may be read."""

    version = 1
    card = Card(
        title="Your own images and table",
        licence="that of your images",
        source="your own files",
        citation="whatever your images are from",
        targets=(),
        attributes={},
        defaults=Defaults(target="", attribute="", image_size=64, batch_size=128, epochs=100),
        obtain=(
            "point --data-dir at a folder or an archive of images, nested or not, with a CSV or Parquet table in it: a row "
            "per image, with its file, a target and a sensitive attribute; --set data.table=FILE says which table; "
            "fairssl data describe DIR --table FILE says what it finds"
        ),
        train_depends_on=frozenset({"target"}),  # images without the target are left out
    )

    class Config(TableConfig):
        pass
