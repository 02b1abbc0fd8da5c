"""Tables of labels as files: CSV or Parquet, read as text, and which file of theirs is which image."""

from __future__ import annotations

import contextlib
import csv
import io
import posixpath
import re
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairssl.data.archives import contents_of, is_archive, open_archive
from fairssl.data.files import Names, is_image_name
from fairssl.types import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".parquet")


def is_table(name: str) -> bool:
    """Whether a file of that name is taken for a table."""
    return name.lower().endswith(TABLES)


def table_bytes(dataset: str, home: Path, root: Path, name: str) -> tuple[str, bytes]:
    """A table's place, for messages, and its bytes: below the data folder, or in or beside the archive."""
    path = home / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(
            f"{dataset}: the table {name!r} must lie below {str(home)!r}, so that the data can move as a whole; put it "
            "there, or make a folder that holds it and a link to the images"
        )
    if root.is_file() and is_archive(root.name):
        with contextlib.closing(open_archive(root, is_table)) as source:
            found = [one for one, _, _ in source.found if one == name or posixpath.basename(one) == name]
            if len(found) == 1:
                return f"{name} in {root}", source.read(found[0])
    if not path.is_file():
        raise UserError(f"{dataset}: there is no table {str(path)!r}; {contents_of(home)}")
    if not is_table(path.name):
        raise UserError(
            f"{dataset}: {str(path)!r} is no table that fairssl reads; save it as CSV or Parquet ({', '.join(TABLES)})"
        )
    return str(path), path.read_bytes()


def read_table(place: str, data: bytes) -> pd.DataFrame:
    """A CSV (comma, semicolon or tab) or Parquet file as texts, None where a value is missing; whole numbers as such.

    Errors: `UserError` for what cannot be read, an empty one, a column named twice, and a quote that is never closed.
    """
    import pandas as pd  # half a second, which listing datasets need not pay

    if place.lower().endswith(".parquet") or data.startswith(b"PAR1"):
        table = _read_parquet(place, data)
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise UserError(f"{place!r} is not UTF-8 (line {line}); save it as CSV in UTF-8") from error
        heading = text.partition("\n")[0]
        separator = max(",;\t", key=heading.count)
        names = next(csv.reader([heading.rstrip("\r")], delimiter=separator), [])
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise UserError(f"{place!r} has two columns called {twice[0]!r}; name them differently")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "error", pd.errors.ParserWarning
                )  # of fields beyond the heading, which would be lost
                table = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, index_col=False, skipinitialspace=True)
        except (ValueError, csv.Error, pd.errors.ParserWarning) as error:  # pandas' parser errors are ValueErrors
            raise UserError(f"{place!r} cannot be read as CSV: {' '.join(str(error).split())}") from error
    table.columns = [str(name).strip() for name in table.columns]
    table = table[
        [name for name in table.columns if name and not name.startswith("Unnamed:")]
    ]  # row numbers of pandas'
    if not len(table) or not len(table.columns):
        raise UserError(f"{place!r} holds no row")
    found = {name: _texts(table[name]) for name in table.columns}
    for name, values in found.items():
        for row in np.flatnonzero([value is not None and "\n" in value for value in values]):
            if any(map(is_image_name, re.split(r"[\s,;]", values[row]))):
                raise UserError(
                    f"{place!r}, row {row + 1}: a quote in column {name!r} is not closed, and swallows the rows after it"
                )
    return pd.DataFrame(found, dtype=object)


def _read_parquet(place: str, data: bytes) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(io.BytesIO(data))
    except ImportError as error:
        raise UserError(f"{place!r}: Parquet needs pyarrow: pip install 'fairssl[parquet]'") from error
    except Exception as error:  # pyarrow has errors of its own
        raise UserError(f"{place!r} cannot be read as Parquet: {' '.join(str(error).split())}") from error


def _texts(column: pd.Series) -> np.ndarray:
    """Objects (N,): text, or None where missing. Where all are whole numbers, `1.0`, which is how they are written beside
    missing ones, is `1`."""
    texts = column.astype("string").str.strip()
    known = texts.dropna().unique()
    if any(text.endswith(".0") for text in known) and all(re.fullmatch(r"[-+]?\d+(\.0)?", text) for text in known):
        texts = texts.str.removesuffix(".0")
    found = texts.to_numpy(dtype=object, na_value=None)
    found[found == ""] = None
    return found


def plain(path: str) -> str:
    """A file's name in a table as `ImageFiles` would have it."""
    return unicodedata.normalize("NFC", path.replace("\\", "/")).removeprefix("./").lstrip("/")


def match(given: Names, paths: Sequence[str], above: str = "") -> np.ndarray:
    """int64 (M,): the place among `paths` (N,) of each file given, as `plain` makes them, -1 where it is not there.

    Written from the data folder, or with fewer or more folders before it as long as only one file can be meant; also
    without the ending, where no name has one. `above`: the folder that `paths` are seen from.
    """
    ours = [unicodedata.normalize("NFC", path) for path in paths]
    if not any(map(is_image_name, given)):
        ours = [posixpath.splitext(path)[0] for path in ours]
    whole = {path: i for i, path in enumerate(ours)} | {posixpath.join(above, path): i for i, path in enumerate(ours)}
    by_base: dict[str, list[int]] = {}
    for i, path in enumerate(ours):
        by_base.setdefault(posixpath.basename(path), []).append(i)
    found = np.full(len(given), -1, dtype=np.int64)
    for row, name in enumerate(map(str, given)):
        exact = whole.get(name)
        if exact is None:
            possible = [
                i
                for i in by_base.get(posixpath.basename(name), ())
                if f"/{ours[i]}".endswith(f"/{name}") or f"/{name}".endswith(f"/{ours[i]}")
            ]
            exact = possible[0] if len(possible) == 1 else None
        if exact is not None:
            found[row] = exact
    return found
