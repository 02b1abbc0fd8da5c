"""FairFace: faces balanced over seven races, with nine ranges of age and gender.

Kärkkäinen, Joo: "FairFace: Face Attribute Dataset for Balanced Race, Gender, and Age for Bias Measurement and Mitigation",
WACV 2021. The published validation images are the test split; a tenth of the training images is the validation split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fairssl.api import Card, Defaults, TableConfig, TableDataset, UserError, contents_of, subfolders

TABLES = ("fairface_label_train.csv", "fairface_label_val.csv")
AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "more than 70")
RACES = ("Black", "East Asian", "Indian", "Latino_Hispanic", "Middle Eastern", "Southeast Asian", "White")


class FairFace(TableDataset):
    """FairFace with gender as target; race in seven groups, or age in nine ordered ones, as attribute."""

    version = 1
    card = Card(
        title="FairFace",
        licence="CC BY 4.0",
        source="https://github.com/joojs/fairface",
        citation=(
            'Kärkkäinen, Joo: "FairFace: Face Attribute Dataset for Balanced Race, Gender, and Age for Bias Measurement and '
            'Mitigation", WACV 2021'
        ),
        targets=("gender",),
        attributes={"race": RACES, "age": AGES, "gender": ("Female", "Male")},
        defaults=Defaults(target="gender", attribute="race", image_size=64, batch_size=128, epochs=100),
        positive={"gender": "Male"},
        ordered=frozenset({"age"}),
        synonyms={"sex": "gender", "male": "gender", "ethnicity": "race"},
        obtain=(
            f"download the images (padding 0.25 or 1.25) and the labels {' and '.join(TABLES)} from "
            "https://github.com/joojs/fairface and point --data-dir at the folder that holds train/, val/ (or the zip) and "
            "both CSV files"
        ),
    )
    hidden = frozenset({"service_test"})
    official = (78_069, 8_675, 10_954)  # of 86,744 published for training, a tenth for validation

    class Config(TableConfig):
        ordered: dict[str, tuple[str, ...]] = Field(
            default_factory=lambda: dict[str, tuple[str, ...]](age=AGES), json_schema_extra={"added": True}
        )
        """Column whose groups have an order -> it."""
        split: str = Field(default_factory=str, json_schema_extra={"added": True})
        """By default the official splits; `drawn`: draw them from all images there; or a column of train, val and test."""

    def home(self, root: Path) -> Path:
        """The folder with the tables: the one named, or its fairface/."""
        homes = [super().home(root), *(path for path in subfolders(root) if path.name.casefold() == "fairface")]
        return next((home for home in homes if any((home / name).is_file() for name in TABLES)), homes[0])

    def tables(self, home: Path, root: Path) -> list[str]:
        """The two published files; where splits are to be drawn, the one that is there will do."""
        here = [name for name in TABLES if (home / name).is_file()]
        if not here:
            raise UserError(
                f"fairface: {str(home)!r} holds neither {' nor '.join(TABLES)} ({contents_of(home)}): {self.card.obtain}"
            )
        if len(here) < len(TABLES) and self.config.split != "drawn":
            (lost,) = set(TABLES) - set(here)
            raise UserError(
                f"fairface: {str(home)!r} lacks {lost}, and so one of the official splits: get it from {self.card.source}, or "
                "have splits drawn from what is there: --set data.split=drawn"
            )
        return here

    def lacking(self, found: Any, empty: Sequence[str]) -> str:
        """The folder whose images are missing."""
        folder, table = ("train", TABLES[0]) if empty[0] == "train" else ("val", TABLES[1])
        return (
            f"none of the images of {folder}/ that {table} lists is in {str(found.files.root)!r}: put them there as they are "
            "published"
        )

    def official_parts(self, found: Any) -> np.ndarray | None:
        """What lies in train/ is training, what lies in val/ is test; or what a column says that the user names."""
        if self.config.split:
            return super().official_parts(found)
        return np.array([2 if "val" in str(path).split("/")[:-1] else 0 for path in found.paths], dtype=np.int64)
