"""The contract checks over everything registered, and proof that they see what they look for."""

from __future__ import annotations

import pytest
import torch
from reference.plugin_package import OBJECTIVE, PREPARED, known, write_package

from fairssl import kinds, testing
from fairssl.cli.new import plugin_and_test
from fairssl.types import UserError

ALL = [
    pytest.param(kind, name, marks=pytest.mark.slow if (kind, name) == ("encoders", "timm") else [])
    for kind in kinds.registries
    for name in kinds.registries[kind].where()
]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_contract(kind, name):
    testing.assert_contract(kind, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.objectives.where())
def test_every_objective_is_a_method(name):
    testing.assert_contract("method", name)


@pytest.mark.slow
@pytest.mark.parametrize("head", kinds.heads.where())
def test_every_head_goes_with_an_objective_that_gives_what_it_needs(head):
    needs = kinds.heads.get(head).needs
    objectives = [o for o in kinds.objectives.where() if needs in (None, kinds.objectives.get(o).gives)]
    for objective in objectives:
        if objective != head and kinds.objectives.get(objective).trains:
            testing.assert_contract("method", f"{objective}+{head}")


def test_an_unknown_name_is_the_users_mistake():
    with pytest.raises(UserError, match="unknown objective 'simclrr'; did you mean 'simclr'"):
        testing.check("objective", "simclrr")


def test_a_check_leaves_the_global_generators_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    testing.check("metric", "ed")
    testing.check("method", "simclr")
    assert torch.equal(before, torch.get_rng_state())


def failures(tmp_path, kind, text, only=None):
    """name -> reason of the failing checks, or of the check `only`, of a stranger's plugin with that text."""
    write_package(tmp_path, "stranger", {f"{kind}s/faulty.py": text})
    with known(tmp_path):
        return {found.name: found.reason for found in testing.check(kind, "faulty", only) if found.state == "fail"}


def edited(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


RETURN = '        return Terms(primal={"agree": loss})'


def before_return(line):
    return RETURN, f"        {line}\n{RETURN}"


def in_init(line):
    return "        self.layer =", f"        {line}\n        self.layer ="


SHARDED = "from fairssl.api import", "from fairssl.nn import sharded\nfrom fairssl.api import"


def test_a_sound_plugin_passes(tmp_path):
    assert failures(tmp_path, "objective", OBJECTIVE) == {}


def test_a_projection_that_is_sharded_passes(tmp_path):
    wide = "torch.nn.Linear(ctx.feature_dim, 8)"
    normed = wide, f"torch.nn.Sequential({wide}, torch.nn.BatchNorm1d(8))"
    found = failures(
        tmp_path, "objective", edited(OBJECTIVE, ("self.layer(f)", "sharded(self.layer, f)"), normed, SHARDED)
    )
    assert found == {}


def test_a_plugin_with_a_stage_before_training_passes(tmp_path):
    assert failures(tmp_path, "objective", PREPARED) == {}


@pytest.mark.parametrize(
    ("check", "reason", "changes"),
    [
        ("terms are finite 0-d tensors", "shape (8,)", [(".square().mean()", ".square().mean(0)")]),
        ("terms are finite 0-d tensors", "no primal term", [('primal={"agree": loss}', 'log={"agree": loss}')]),
        ("terms are finite 0-d tensors", "a float, not a tensor", [before_return("loss = float(loss.detach())")]),
        (
            "state dict round trip",
            "keep all state in parameters and buffers",
            [in_init("self.count = 0"), before_return("self.count += 1; loss = loss * self.count")],
        ),
        (
            "a resumed run equals an uninterrupted one",
            "differs between a run of",
            [in_init("self.count = 0"), before_return("self.count += 1; loss = loss * self.count")],
        ),
        (
            "equal seeds, equal bits",
            "draw with torch",
            [("import torch\n", "import numpy as np\nimport torch\n"), before_return("loss = loss * np.random.rand()")],
        ),
        ("the batch's order does not matter", "in another order", [before_return("loss = loss + z[0].sum()")]),
        (
            "gradients reach what they should",
            "does not reach all of the encoder",
            [before_return("loss = self.layer.weight.square().sum()")],
        ),
        (
            "gradients reach what they should",
            "no term moves parameter 'extra.weight'",
            [in_init("self.extra = torch.nn.Linear(2, 2)")],
        ),
        (
            "processes that share a batch equal one",
            "the primal gradient of part.faulty.layer.weight is off",  # seen by its size in a first step
            [before_return("loss = loss + sharded(self.layer, batches['all'].f[0]).square().mean()"), SHARDED],
        ),
        (
            "processes that share a batch equal one",
            "is used in no other way",
            [("return self.layer(f)", "return sharded(self.layer, f) + self.layer(f)"), SHARDED],
        ),
        (
            "processes that share a batch equal one",
            "goes through `sharded` works row by row",
            [
                before_return("loss = loss + sharded(self.other, batches['all'].f[0]).square().mean()"),
                in_init("self.other = torch.nn.Sequential(torch.nn.Linear(ctx.feature_dim, 3), torch.nn.Softmax(0))"),
                SHARDED,
            ],
        ),
        (
            "processes that share a batch equal one",
            "is used in no other way",
            [
                before_return("f, f_ = batches['all'].f"),
                before_return("loss = loss + (sharded(self.other, f) - self.other(f_)).square().mean()"),
                in_init("wide = torch.nn.BatchNorm1d(ctx.feature_dim), torch.nn.Linear(ctx.feature_dim, 3)"),
                in_init("self.other = torch.nn.Sequential(*wide)"),
                SHARDED,
            ],
        ),
        ("finite under bf16 with extreme features", "agree is inf", [before_return("loss = loss.exp()")]),
        (
            "config",
            "can be assigned",
            [("class Config(PluginConfig):", 'class Config(PluginConfig):\n        model_config = {"frozen": False}')],
        ),
        (
            "config",
            "stands for 'scael'",
            [("scale: float", 'aliases = {"s": "scael"}\n        scale: float')],
        ),
        ("docstrings and version", "docstring", [('"""Views agree: an objective of a stranger\'s."""', "")]),
        ("terms are finite 0-d tensors", "NoneType", [before_return("loss = loss + batches['all'].group.sum()")]),
        ("terms are finite 0-d tensors", "annotated", [before_return("loss = loss + batches['annotated'].z[0].sum()")]),
        (
            "after training: features and scores",
            "one logit",
            [("    class Config", '    gives = "logits"\n\n    class Config')],
        ),
        (
            "after training: features and scores",
            "leaves [0, 1]",
            [("    def forward", "    def scores(self, f):\n        return f[:, 0] - 5\n\n    def forward")],
        ),
    ],
)
def test_a_faulty_objective_fails(tmp_path, check, reason, changes):
    found = failures(tmp_path, "objective", edited(OBJECTIVE, *changes), only=check)
    assert reason in found.get(check, ""), found


CAPTURE, REPLAY = "a GPU can capture its step", "a replayed step equals an eager one"

NOT_ON_A_GPU = {  # a line in `forward` -> what a user is told
    "loss = loss if loss > 0 else -loss": "Tensor.bool, which reads a tensor back",
    "loss = loss + 0 * sum(z[0].tolist())": "reads a tensor back",
    "loss = loss * (1 if z.sum().item() else 1)": "Tensor.item, which reads a tensor back",
    "loss = loss + 0 * z.detach().cpu().sum()": "copies a tensor to the host",
    "loss = loss + z[torch.arange(8)].mean()": "indexes with a tensor of the host",
    "loss = loss + (torch.zeros(8) + z).mean()": "calls add with a tensor of the host",
    "loss = loss + (z + torch.zeros(8).to(z.device)).mean()": "copies a tensor of the host to the GPU",
    "loss = loss + (z + torch.randn(8).to(z.device)).mean()": "calls randn on the host",
    "loss = loss * torch.rand(())": "calls rand on the host",
    "loss = loss * torch.tensor(0.5, device=z.device)": "copies a tensor of the host to the GPU",
    "loss = torch.where(loss > 0, loss, torch.tensor(0.5))": "calls where with a tensor of the host",
    "z = z.clone(); z[z > 0] = z[0, 0]; loss = loss + z.mean()": "assigns a tensor through a mask",
    "z = z.clone(); z[batches['all'].index % 8] = 0.5; loss = loss + z.mean()": "assigns a tensor of the host",
    "loss = loss + z[z[:, 0] > 0].sum()": "indexes with a mask",
    "loss = loss + torch.nonzero(z).float().mean()": "calls nonzero, whose result must be read back",
    "loss = loss + z.repeat_interleave(batches['all'].index, 0).mean()": "calls repeat_interleave",
    "loss = loss + torch.linalg.eigvalsh(z.T @ z).mean()": "calls _linalg_eigh, whose result must be read back",
    "self.scale.mul_(0.9); loss = loss * self.scale": "calls mul_ on a tensor of the host, which a replay leaves as it is",
    "loss = loss + (z * self.table).mean()": "calls mul with a tensor of the host",
    "loss = loss + Odd.apply(z).mean()": "Tensor.item, which reads a tensor back",
    "z.register_hook(lambda g: g * bool(g.sum() > 0))": "Tensor.bool, which reads a tensor back",
}
FROZEN = [  # lines in `forward` whose numbers Python makes
    "self.count += 1; loss = loss * self.count",
    "import random; loss = loss * random.random()",
    "self.mean = 0.9 * self.mean + z.detach().mean(); loss = loss * self.mean",
]
SOUND = [
    "loss = loss + torch.nn.functional.one_hot(batches['all'].index % 4, 4).float().mean() * z.mean()",
    "z = z.clone(); z[z > 0] = 0.0; loss = loss + z.mean()",
    "z = z.clone(); z[:, 1] = 0.5; loss = loss + z.mean()",
    "loss = loss + z.repeat_interleave(torch.full((8,), 2, device=z.device), 0, output_size=16).mean()",
    "loss = loss * torch.tensor(0.5)",
    "loss = loss * torch.linspace(0, 1, 3)[1].item()",
    "loss = loss * torch.rand((), device=z.device)",
    "loss = loss + torch.nn.functional.dropout(z).mean()",
    "z.register_hook(lambda g: torch.where(g.isfinite().all(), g, 0.0))",
    "self.seen.add_(1); loss = loss * self.seen",
    "loss = loss + z.median() + z.cumsum(0).mean() + z.sort(0).values[0].mean()",
]
WITH_STATE = [
    in_init("self.count, self.scale, self.table = 0, torch.tensor(1.0), torch.ones(8)"),
    in_init("self.mean = torch.zeros(())"),
    in_init('self.register_buffer("seen", torch.zeros(()))'),
    (
        "class Agree",
        """class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 if gradient.sum().item() else 1)


class Agree""",
    ),
]


def captured(tmp_path, line):
    """The failing checks of the two that stand for a GPU, of an objective with that line in `forward`."""
    write_package(tmp_path, "stranger", {"objectives/faulty.py": edited(OBJECTIVE, *WITH_STATE, before_return(line))})
    with known(tmp_path):
        found = [one for check in (CAPTURE, REPLAY) for one in testing.check("objective", "faulty", check)]
    return {one.name: one.reason for one in found if one.state != "pass"}


@pytest.mark.parametrize("line", NOT_ON_A_GPU)
def test_what_a_gpu_cannot_capture_is_told_with_its_line(tmp_path, line):
    reason = captured(tmp_path, line)[CAPTURE]
    assert reason.startswith("a step ") and NOT_ON_A_GPU[line] in reason
    if line != "loss = loss + Odd.apply(z).mean()":
        assert "(faulty.py:" in reason and line in reason
    else:
        assert "return gradient * (1 if gradient.sum().item() else 1)" in reason


@pytest.mark.parametrize("line", FROZEN)
def test_what_a_replay_would_repeat_is_found(tmp_path, line):
    found = captured(tmp_path, line)
    assert {*found} == {REPLAY} and "what Python computes is frozen there" in found[REPLAY]


@pytest.mark.parametrize("line", SOUND)
def test_what_a_gpu_can_capture_passes(tmp_path, line):
    assert captured(tmp_path, line) == {}


AFTER_STEP = """\
    def rate(self):
        self.count += 1
        return 0.5**self.count

    def after_step(self, encoder, progress):
        with torch.no_grad():
            self.layer.bias.mul_(RATE)

"""


@pytest.mark.parametrize(("rate", "failing"), [("self.rate()", {REPLAY}), ("(1 - progress)", set())])
def test_a_rate_that_python_computes_is_frozen_and_one_on_the_device_is_not(tmp_path, rate, failing):
    text = edited(OBJECTIVE, *WITH_STATE, ("    def project", AFTER_STEP.replace("RATE", rate) + "    def project"))
    write_package(tmp_path, "stranger", {"objectives/faulty.py": text})
    with known(tmp_path):
        found = [one for check in (CAPTURE, REPLAY) for one in testing.check("objective", "faulty", check)]
    assert {one.name for one in found if one.state != "pass"} == failing


def test_a_part_that_says_it_is_not_capturable_is_not_asked(tmp_path):
    eager = ("    class Config", "    capturable = False\n\n    class Config")
    text = edited(OBJECTIVE, eager, before_return("loss = loss if loss > 0 else -loss"))
    write_package(tmp_path, "stranger", {"objectives/faulty.py": text})
    with known(tmp_path):
        found = {one.name: one for one in testing.check("objective", "faulty")}
    assert found[CAPTURE].state == found[REPLAY].state == "skip" and "as it says itself" in found[CAPTURE].reason


GROUP_LOOP = """\
        means = [f[group == code].mean(0) for code in (0, 1)]
        return Terms(primal={"mean_gap": (means[0] - means[1]).square().sum()})
"""


def test_a_head_that_divides_by_the_size_of_an_absent_group_fails(tmp_path):
    text = plugin_and_test("head", "faulty")[0]
    start, end = text.index("        return Terms("), text.index("def mean_gap")
    found = failures(tmp_path, "head", text[:start] + GROUP_LOOP + "\n\n" + text[end:])
    assert "nan" in found["a batch with one group or one class"]
    assert "with a mask" in found[CAPTURE]


METRIC = plugin_and_test("metric", "faulty")[0]
VALUE = "    return max(numbers) - min(numbers)\n"


@pytest.mark.parametrize(
    ("check", "reason", "changes"),
    [
        (
            "an absent group or class",
            "what has no value is Undefined",
            [
                (
                    "        return next(value for value in accuracies if isinstance(value, Undefined))",
                    '        return float("nan")',
                )
            ],
        ),
        ("defined for ordinary scores", "no percentage", [(VALUE, VALUE.replace("max(", "100 * max("))]),
        ("defined for ordinary scores", "undefined for ordinary", [(VALUE, '    return Undefined("never")\n')]),
        ("the rows' order does not matter", "in another order", [(VALUE, "    return float(outcome.score[0])\n")]),
        ("exchanging two groups' codes", "exchanged", [(VALUE, "    return float(numbers[0])\n")]),
        ("perfect and reversed scores", "lower is better", [(VALUE, "    return min(numbers)\n")]),
        (
            "same answer twice, input untouched",
            "changes the predictions",
            [(VALUE, "    outcome.score[:] = 0\n" + VALUE)],
        ),
        ("docstrings, symbol and version", "has the symbol too", [('symbol="Faulty"', 'symbol="ED"')]),
        (
            "docstrings, symbol and version",
            "interval is 'wide'",
            [('symbol="Faulty"', 'symbol="Faulty", interval="wide"')],
        ),
        (
            "more than two groups, by each way to pair them",
            "codes of four groups exchanged",
            [
                ("(outcome: Outcome)", '(outcome: Outcome, *, pairs: scoring.Pairs = "adjacent")'),
                (VALUE, "    return abs(numbers[0] - numbers[1])\n"),
            ],
        ),
    ],
)
def test_a_faulty_metric_fails(tmp_path, check, reason, changes):
    found = failures(tmp_path, "metric", edited(METRIC, *changes))
    assert reason in found.get(check, ""), found


DATASET = plugin_and_test("dataset", "faulty")[0]


@pytest.mark.parametrize(
    ("check", "reason", "changes"),
    [
        ("splits are sound and disjoint", "shares", [('f"{part}{i:05d}"', 'f"{i:05d}"')]),
        ("splits are sound and disjoint", "not uint8", [("Split(images,", "Split(images / 255,")]),
        (
            "splits are sound and disjoint",
            "the card says",
            [("groups=GROUPS,\n        )", 'groups=("a", "b"),\n        )')],
        ),
        (
            "two loads, equal bits",
            "differs between two loads",
            [("PCG64(split_seed)", "PCG64(np.random.randint(2**31))")],
        ),
        ("card", "ordered names what", [("embedded=True", 'ordered=frozenset({"shape"}), embedded=True')]),
        ("card", "synonyms leads to", [("embedded=True", 'synonyms={"place": "side"}, embedded=True')]),
        ("card", "licence is empty", [('licence="CC0"', 'licence=""')]),
        (
            "training split moves as the card says",
            "put 'attribute' in",
            [
                ('attributes={"tint": GROUPS}', 'attributes={"tint": GROUPS, "hue": GROUPS}'),
                ('frozenset({"target", "attribute"})', "frozenset()"),
                ("PCG64(split_seed)", "PCG64(split_seed + len(attribute))"),
            ],
        ),
    ],
)
def test_a_faulty_dataset_fails(tmp_path, check, reason, changes):
    found = failures(tmp_path, "dataset", edited(DATASET, *changes))
    assert reason in found.get(check, ""), found


METHOD = plugin_and_test("method", "faulty")[0]


@pytest.mark.parametrize(
    ("check", "reason", "changes"),
    [
        ("what it sees agrees with its parts", "its parts see 'annotated'", [('group="annotated"', 'group="none"')]),
        ("needs no torch to be listed", "imports torch", [("from fairssl.api", "import torch\nfrom fairssl.api")]),
        ("settings of the loop and the probe", "no scores of its own", [("contrastive=True", 'scored_by="own"')]),
        ("settings of the loop and the probe", "did you mean 'epochs'", [("contrastive=True", 'train={"epoch": 3}')]),
        ("names and aliases are its own", "taken by method", [("contrastive=True", 'aliases=("simclr+ccl",)')]),
        ("resolves", "unknown head 'ccll'", [('heads={"ccl"', 'heads={"ccll"')]),
    ],
)
def test_a_faulty_method_fails(tmp_path, check, reason, changes):
    try:
        found = failures(tmp_path, "method", edited(METHOD, *changes))
    except UserError as error:  # a method whose parts do not exist has nothing to check
        found = {"resolves": str(error)}
    assert reason in found.get(check, ""), found


ENCODER = '''\
"""The mean colour."""

import torch

from fairssl.api import Encoder, PluginConfig


class Faulty(Encoder):
    """A linear map of the mean colour."""

    class Config(PluginConfig):
        pass

    def __init__(self, config, image_shape):
        super().__init__(config, image_shape)
        self.dim = 8
        self.layer = torch.nn.Linear(3, 8)

    def forward(self, x):
        return self.layer(x.mean((2, 3)))
'''


NEXT = """\
    calls = 0

    def next(self):
        self.calls += self.training
        return self.calls + 1

"""
SIZE = "self.dim = 8"
MEAN = "x.mean((2, 3))"


@pytest.mark.parametrize(
    ("check", "changes"),
    [
        (None, []),
        ("feature is (B, dim)", [(SIZE, "self.dim = 9")]),
        ("evaluation mode: an image alone", [(MEAN, f"{MEAN} - x.mean((0, 2, 3))")]),
        ("gradients reach every parameter", [(SIZE, f"{SIZE}\n        self.extra = torch.nn.Linear(1, 1)")]),
        (
            "processes that share a batch equal one",
            [(f"self.layer({MEAN})", f"(lambda h: h - h.mean(0) * self.training)(self.layer({MEAN}))")],
        ),
        (
            "refuses unknown names",
            [
                (
                    "    def forward",
                    "    @classmethod\n    def accepts(cls, name):\n        return {}\n\n    def forward",
                )
            ],
        ),
        (
            "state dict round trip",
            [(MEAN, f"{MEAN} + self.shift"), (SIZE, f"{SIZE}\n        self.shift = torch.randn(3)")],
        ),
        ("a GPU can capture its step", [(MEAN, f"{MEAN} * (2 if x.mean() > 0 else 1)")]),
        (
            "a replayed step equals an eager one",
            [(MEAN, f"{MEAN} * self.next()"), ("    def forward", f"{NEXT}    def forward")],
        ),
    ],
)
def test_a_faulty_encoder_fails(tmp_path, check, changes):
    found = failures(tmp_path, "encoder", edited(ENCODER, *changes))
    assert ({*found} == set()) if check is None else check in found, found
