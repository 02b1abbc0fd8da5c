"""Values that the stages of a run hand to each other. Data only; imports neither torch nor a plugin.

Shape letters, everywhere in fairssl:
N examples, B batch, V views, C channels, H and W pixels, D backbone width, F feature width,
P projection width, K target classes, G groups (values of the sensitive attribute).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

KINDS = ("methods", "objectives", "heads", "encoders", "datasets", "metrics")
Stream = Literal["all", "annotated"]
Sampler = Literal["shuffle", "group_balanced", "cell_balanced"]
# What scores after training: a linear probe on the targets of all training images; the method's own classifier; a fresh
# linear head on the annotated images; the same on equally many annotated images of each target x group cell.
ScoredBy = Literal["linear", "own", "annotated_head", "balanced_head"]


Progress = Callable[[str, int, int], None]  # what is being done, how much of it, out of how much


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


class UserError(ValueError):
    """A mistake of the user's: the message is one line with the thing, its value and the way out."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type, where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def counted(n: int, one: str, several: str = "") -> str:
    """A number with its noun: `1 image`, `1,200 images`, `0 images`. `several`: the plural where it is not `one` with an s."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def first_few(names: Sequence[str], n: int) -> str:
    """The first `n` names, printable, and whether there are more: `a.jpg, b.jpg, ...`."""
    return ", ".join(map(printable, names[:n])) + (", ..." if len(names) > n else "")


def printable(text: str) -> str:
    r"""`text` as it can be printed and written: bytes of a file name that are no UTF-8, and control characters, escaped.

    >>> print(printable(os.fsdecode(b"caf\xe9.jpg")))
    caf\xe9.jpg
    """
    if text.isprintable():  # nearly always
        return text
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        data = text.encode("utf-8", "backslashreplace")
    shown = data.decode("utf-8", "backslashreplace")
    return "".join(c if c >= " " and not "\x7f" <= c <= "\x9f" else f"\\x{ord(c):02x}" for c in shown)


@dataclass(frozen=True)
class Split:
    """One split of a dataset.

    `images` uint8 (N, C, H, W), which may be memory-mapped: a slice costs nothing, `images[rows]` with an array of
    positions copies these images into memory. `target` int64 (N,) of 0 and 1, known for every image. `group` int64 (N,) in
    0..G-1, or -1 where it is unknown, which is allowed in every split: such an image is trained on like any other, is never
    annotated, and takes no part in what is said of groups. `ids` N different short strings that name each example for
    ever, wherever the data lies. `attributes`: codes int64 (N,) of further attributes of the card, by name, -1 where
    unknown; a dataset that gives them lets attributes be combined, as in `--attr male+young`.
    """

    images: np.ndarray
    target: np.ndarray
    group: np.ndarray
    ids: Sequence[str]
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Splits:
    """Train, validation and test of one (dataset, target, attribute), disjoint; plus what a reader should know.

    `departures` and `notes` are one line each, said once per bench and kept in the record. What they say of each `target x
    group` is of the attribute that `load` was asked for: where attributes are combined, its name stands in place of `group`.
    """

    train: Split
    val: Split
    test: Split
    groups: tuple[str, ...]  # label of each group code, in order
    notes: tuple[str, ...] = ()  # what is only information: skipped names, counts, ...
    departures: tuple[str, ...] = ()  # from the dataset's own protocol: what every table's caption must say
    positive: str = ""  # what y = 1 means; filled in from the card by `load_splits`
    ordered: bool = False  # whether the groups are in an order; filled in from the card by `load_splits`


@dataclass(frozen=True)
class Defaults:
    """What a dataset's card sets where the user leaves a flag out."""

    target: str
    attribute: str
    image_size: int  # pixels, square
    batch_size: int
    epochs: int
    encoder: str = "resnet18"
    annotated: float = 0.05  # share of the training images whose group may be seen
    seeds: int = 4
    preset: str = "paper"


@dataclass(frozen=True)
class Card:
    """What a user must know about a dataset before using it, as data."""

    title: str
    licence: str
    source: str
    citation: str
    targets: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]  # attribute -> the label of each group code, in order
    defaults: Defaults
    positive: Mapping[str, str] = field(default_factory=dict)  # target -> what y = 1 means
    embedded: bool = False  # needs no files
    obtain: str = ""  # what to download, from where, and where to put it
    train_depends_on: frozenset[str] = frozenset()  # of "target", "attribute": what moves the training split
    ordered: frozenset[str] = frozenset()  # attributes whose groups have an order, as ages have; the others are nominal
    # What else people call a target or an attribute -> its name here; for messages.
    synonyms: Mapping[str, str] = field(default_factory=dict)
    # "target" or "attribute" -> a label of the data that cannot be one -> why, and the way out; for messages.
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class DataFacts:
    """What a dataset finds at a root without decoding it. `fingerprint` is a hash of content, never of a path."""

    fingerprint: str
    n_images: int
    max_image_size: int | None  # pixels of the shorter stored side; None: any size can be drawn, in memory
    notes: tuple[str, ...] = ()


def _declared(values: Tensor | None, label: str) -> Tensor:
    if values is None:
        raise RuntimeError(f"the {label} is withheld: declare it, as in sees = frozenset({{{label!r}}})")
    return values


@dataclass(frozen=True)
class Crops:
    """Further views that a part asks for beside the usual ones, see `Part.crops`: `n` of each image, `size` pixels square,
    each of a share of the image's area within `area`, else augmented like all others."""

    n: int
    size: int
    area: tuple[float, float]


@dataclass
class Batch:
    """One stream's batch as a part may see it: V views of B images.

    `views` V x (B, C, h, w), augmented and normalised, empty unless the part declares "views" in `sees`; `index` (B,)
    positions in the training split; `target`, `group` (B,) int64, None unless the part declares them in `sees`.
    `h` V x (B, D) is `encoder(view)`; `f` V x (B, F) is `objective.represent(h)`: what the probe, the adversary and an
    eraser see.
    `z` V x (B, P) is `objective.project(f)`, computed when first asked for and shared by all parts.

    The methods give all views below each other, view by view: row v B + i is view v of image i. Views of different size
    cannot stand below each other as pixels; their features can.

    `extra`: class of a part -> the views, by number, that it has asked for or added; no other part is shown them.
    """

    views: list[Tensor]
    index: Tensor
    target: Tensor | None = None
    group: Tensor | None = None
    h: list[Tensor] = field(default_factory=list)
    f: list[Tensor] = field(default_factory=list)
    project: Callable[[Tensor], Tensor] | None = None
    extra: Mapping[type, range] = field(default_factory=dict)
    stream: str = ""
    _z: list[Tensor] | None = field(default=None, init=False, repr=False, compare=False)
    _flat_f: tuple[list[Tensor], Tensor] | None = field(
        default=None, init=False, repr=False, compare=False
    )  # of which f

    # Not cached_property, which up to Python 3.11 lets one thread at a time compute: threads may play the processes of a step.
    @property
    def z(self) -> list[Tensor]:
        if self.project is None:
            raise RuntimeError("a batch has no projection before the encoder has run")
        if self._z is None:
            self._z = Chunks(self.project(self.flat_f()), len(self.f))
        return self._z

    def flat_views(self) -> Tensor:
        """(V B, C, h, w); empty unless the part declares "views"."""
        return joined(self.views)

    def flat_h(self) -> Tensor:
        """(V B, D)."""
        return joined(self.h)

    def flat_f(self) -> Tensor:
        """(V B, F); the same tensor at every call, and what `z` is computed from, so that `z` can be differentiated by it."""
        if self._flat_f is None or self._flat_f[0] is not self.f:
            self._flat_f = self.f, joined(self.f)
        return self._flat_f[1]

    def flat_z(self) -> Tensor:
        """(V B, P)."""
        return joined(self.z)

    def target_of_images(self) -> Tensor:
        """(B,) int64; a part that does not declare "target" gets a RuntimeError."""
        return _declared(self.target, "target")

    def group_of_images(self) -> Tensor:
        """(B,) int64; a part that does not declare "group" gets a RuntimeError."""
        return _declared(self.group, "group")

    def target_of_views(self) -> Tensor:
        """(V B,) int64, the image's target for each view; a part that does not declare "target" gets a RuntimeError."""
        return self.target_of_images().repeat(max(len(self.f), len(self.views)))

    def group_of_views(self) -> Tensor:
        """(V B,) int64, the image's group for each view; a part that does not declare "group" gets a RuntimeError."""
        return self.group_of_images().repeat(max(len(self.f), len(self.views)))


class Chunks(list["Tensor"]):
    """A tensor in n parts of equal length, in order, which can be put together again without a copy."""

    def __init__(self, whole: Tensor, n: int) -> None:
        super().__init__(whole.chunk(n))
        self._whole, self._parts = whole, tuple(self)

    def joined(self) -> Tensor | None:
        """The tensor itself; None if a part has been replaced since."""
        same = len(self) == len(self._parts) and all(a is b for a, b in zip(self, self._parts, strict=True))
        return self._whole if same else None


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The tensors below each other, (n, ...); not to be changed in place, since it may be no copy."""
    whole = parts.joined() if isinstance(parts, Chunks) else None  # also of one part, which would be a slice of it
    if whole is None and len(parts) == 1:
        whole = parts[0]
    if whole is not None:
        return whole
    import torch

    return torch.cat(list(parts))


@dataclass
class Terms:
    """What one part adds to a step, as 0-d tensors, each a loss to minimise.

    `primal` moves everything but the dual parameters, `dual` moves the dual parameters alone; `log` is only written down.
    """

    primal: dict[str, Tensor] = field(default_factory=dict)
    dual: dict[str, Tensor] = field(default_factory=dict)
    log: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a part may know when it is built."""

    encoder: nn.Module  # copy it if you need a second one; do not keep it
    feature_dim: int  # D for the objective, F for heads
    image_shape: tuple[int, int, int]  # C, H, W
    n_train: int
    n_annotated: int
    n_targets: int
    n_groups: int
    n_steps: int


@dataclass(frozen=True)
class Method:
    """A composition with a name: one objective and any number of heads, and what the paper's first table says of it.

    `heads` maps a head's name to the parameters that differ from its defaults (`weight` among them).
    """

    summary: str
    paper: str
    objective: str
    heads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)  # of the objective
    train: Mapping[str, Any] = field(default_factory=dict)  # of the training loop (TrainConfig), where it differs
    probe_params: Mapping[str, Any] = field(default_factory=dict)  # of the probe (ProbeConfig), where it differs
    sampler: Sampler = "shuffle"
    scored_by: ScoredBy = "linear"
    aliases: tuple[str, ...] = ()
    adversarial: bool = False
    contrastive: bool = False
    target: Literal["none", "annotated", "all"] = "none"
    group: Literal["none", "annotated", "all"] = "none"
    generator: bool = False
    theory: bool = False
    notes: str = ""  # extra networks, and where our reading differs
    # What to tune: a setting as `--set` writes it -> the values that are tried.
    search: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Predictions to be judged: `score` float64 (N,) in [0, 1], the probability of y = 1; `target` int64 (N,) of 0 and 1;
    `group` int64 (N,) in 0..G-1; `groups` the label of each code, of which some may have no example."""

    score: np.ndarray
    target: np.ndarray
    group: np.ndarray
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Undefined:
    """In place of a number that does not exist. Never 0, never NaN, never left out."""

    reason: str


Value = float | Undefined


@dataclass(frozen=True)
class Embeddings:
    """The training split after training, for `Head.fit`: `f` (N, F) float32; `target`, `group` (N,) int64, -1 outside the
    annotated subset, None where the head does not declare them in `sees`."""

    f: Tensor
    target: Tensor | None
    group: Tensor | None

    def target_of_images(self) -> Tensor:
        """(N,) int64; a head that does not declare "target" gets a RuntimeError."""
        return _declared(self.target, "target")

    def group_of_images(self) -> Tensor:
        """(N,) int64; a head that does not declare "group" gets a RuntimeError."""
        return _declared(self.group, "group")
