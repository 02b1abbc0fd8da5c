"""Checks of datasets."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fairssl import kinds
from fairssl.interfaces import Dataset
from fairssl.testing.contract import Skipped, Steps, check_config, check_docstrings
from fairssl.types import Split, Splits, UserError


def dataset_checks(name: str, part: Any, data_dir: Path | None = None) -> Steps:
    card = part.card
    if data_dir is not None:
        if card.embedded:
            raise UserError(f"--data-dir {str(data_dir)!r}: {name} is embedded and reads no files; leave it out")
        from fairssl.data.overview import inspect, root_of

        source = kinds.datasets.build(name, {})
        inspect(source, root_of(source, data_dir))  # what the user named is refused, not skipped
    target, attribute = card.defaults.target, card.defaults.attribute
    from_data = (
        not card.targets and part.card_for is not Dataset.card_for
    )  # the user's own table says which labels there are
    loaded: dict[tuple[str, str], Splits] = {}

    def build() -> Any:
        return kinds.datasets.build(name, {})

    def root() -> Path | None:
        if card.embedded:
            return None
        from fairssl.data.places import data_root

        if from_data:
            raise Skipped("its labels are those of the user's own table")
        try:
            found = data_root(data_dir, name)
            build().inspect(found)
        except UserError as error:
            raise Skipped(f"the data is not here: {error}") from error
        return found

    def load(target: str = target, attribute: str = attribute) -> Splits:
        if (target, attribute) not in loaded:
            loaded[target, attribute] = build().load(root(), target, attribute, size())
        return loaded[target, attribute]

    def size() -> int:
        facts = build().inspect(root())
        wanted = min(card.defaults.image_size, 32)  # pixels; checks should take seconds
        return wanted if facts.max_image_size is None else min(wanted, facts.max_image_size)

    def card_complete() -> None:
        for field in ("title", "licence", "source", "citation"):
            assert getattr(card, field), f"card.{field} is empty"
        assert card.embedded or card.obtain, "card.obtain must say what to download, from where, and where to put it"
        if from_data:
            return
        assert target in card.targets, f"the default target {target!r} is none of card.targets"
        assert attribute in card.attributes, f"the default attribute {attribute!r} is none of card.attributes"
        assert target != attribute, "the default target is its own sensitive attribute"
        for one, groups in card.attributes.items():
            assert len(groups) >= 2, f"attribute {one!r} has fewer than two groups"
            assert len(set(groups)) == len(groups), f"attribute {one!r} has two groups of one label"
        assert set(card.positive) <= set(card.targets), "card.positive names what is no target"
        assert card.ordered <= set(card.attributes), "card.ordered names what is no attribute"
        known = {*card.targets, *card.attributes}
        assert set(card.synonyms.values()) <= known, "card.synonyms leads to what is neither target nor attribute"
        assert card.train_depends_on <= {"target", "attribute"}, "train_depends_on may hold 'target' and 'attribute'"
        assert 0 < card.defaults.annotated <= 1 and card.defaults.seeds >= 1, "card.defaults is out of range"
        kinds.encoders.locate(card.defaults.encoder) if card.embedded else None

    def absent() -> None:
        if card.embedded:
            raise Skipped("embedded: it needs no files")
        with tempfile.TemporaryDirectory() as folder:
            try:
                build().inspect(Path(folder))
            except UserError:
                return
        raise AssertionError("inspect accepts an empty folder; it must say what to download and where to put it")

    def fingerprint() -> None:
        one, two = build().inspect(root()), build().inspect(root())
        assert one == two, "inspecting twice gives two answers"
        assert one.fingerprint and one.n_images > 0, "inspect must give a fingerprint of the content and a count"

    def splits_sound() -> None:
        found = load()
        side = size()
        ids: set[str] = set()
        assert tuple(found.groups) == tuple(card.attributes[attribute]), (
            f"groups are {found.groups}, the card says {card.attributes[attribute]}"
        )
        for part_name in ("train", "val", "test"):
            split: Split = getattr(found, part_name)
            n = len(split)
            assert n > 0, f"{part_name} is empty"
            assert split.images.dtype == np.uint8, f"{part_name}.images are {split.images.dtype}, not uint8"
            shape = (n, 3, side, side)
            assert split.images.shape == shape, f"{part_name}.images have shape {split.images.shape}, not {shape}"
            assert split.target.shape == split.group.shape == (n,), f"{part_name}: labels are not (N,)"
            assert split.target.dtype == split.group.dtype == np.int64, f"{part_name}: labels are not int64"
            assert set(np.unique(split.target)) == {0, 1}, f"{part_name}.target must hold 0 and 1 and nothing else"
            inside = (split.group >= -1) & (split.group < len(found.groups))
            assert inside.all(), f"{part_name}.group leaves -1..{len(found.groups) - 1}"
            assert len(np.unique(split.group[split.group >= 0])) >= 2, f"{part_name} has fewer than two groups"
            assert len(split.ids) == n, f"{part_name} has {len(split.ids)} ids for {n} images"
            mine = set(split.ids)
            assert len(mine) == n, f"{part_name} has an id twice"
            assert not mine & ids, f"{part_name} shares {min(mine & ids)!r} with another split"
            ids |= mine

    def attributes() -> None:
        found = load()
        parts = {part: getattr(found, part) for part in ("train", "val", "test")}
        if not any(split.attributes for split in parts.values()):
            raise Skipped("splits say nothing of further attributes, so none can be combined")
        for part, split in parts.items():
            unknown = set(split.attributes) - set(card.attributes)
            assert not unknown, f"{part}.attributes has {min(unknown)!r}, which the card does not have"
            for one, codes in split.attributes.items():
                assert codes.shape == (len(split),), f"{part}.attributes[{one!r}] has shape {codes.shape}, not (N,)"
                inside = (codes >= -1) & (codes < len(card.attributes[one]))
                assert inside.all(), f"{part}.attributes[{one!r}] leaves -1..{len(card.attributes[one]) - 1}"
            chosen = split.attributes.get(attribute, split.group)
            assert np.array_equal(chosen, split.group), f"{part}.attributes[{attribute!r}] is not {part}.group"

    def deterministic() -> None:
        first = load()
        np.random.seed(1)
        random.seed(1)
        second = build().load(root(), target, attribute, size())
        for part_name in ("train", "val", "test"):
            one, two = getattr(first, part_name), getattr(second, part_name)
            for field in ("images", "target", "group"):
                equal = np.array_equal(getattr(one, field), getattr(two, field))
                assert equal, f"{part_name}.{field} differs between two loads"
            assert list(one.ids) == list(two.ids), f"{part_name}.ids differ between two loads"

    def dependence() -> None:
        """A wrong `train_depends_on` would let runs share a pretraining that they may not share."""
        others = {
            "target": [(t, attribute) for t in card.targets if t not in (target, attribute)],
            "attribute": [(target, a) for a in card.attributes if a not in (target, attribute)],
        }
        free = {what: pairs for what, pairs in others.items() if pairs and what not in card.train_depends_on}
        if not free:
            raise Skipped("nothing to compare: one target and attribute, or the split depends on them by its own word")
        for what, pairs in free.items():
            a, b = load().train, load(*pairs[0]).train
            equal = list(a.ids) == list(b.ids) and np.array_equal(a.images, b.images)
            assert equal, f"the training split changes with the {what}: put {what!r} in card.train_depends_on"

    def labels() -> None:
        found = build().labels(root())
        if found is None:
            raise Skipped("labels are known once the images are loaded")
        names = {*card.targets, *card.attributes}
        assert set(found) <= names, f"labels() gives {min(set(found) - names)!r}, which the card does not have"
        assert len({len(codes) for codes in found.values()}) == 1, "labels() gives columns of different length"

    return [
        ("docstrings and version", lambda: check_docstrings(part, kinds.datasets, name)),
        ("config", lambda: check_config(part, name)),
        ("card", card_complete),
        ("says where to get what is not there", absent),
        ("fingerprint", fingerprint),
        ("splits are sound and disjoint", splits_sound),
        ("further attributes of each image", attributes),
        ("two loads, equal bits", deterministic),
        ("training split moves as the card says", dependence),
        ("labels without decoding", labels),
    ]
