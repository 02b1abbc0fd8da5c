"""Encoders: widths, sizes, stems, and what every encoder must hold."""

from __future__ import annotations

import pytest
import torch

from fairssl import kinds
from fairssl.types import UserError


def build(name: str, shape: tuple[int, int, int] = (3, 32, 32), **params: object):
    torch.manual_seed(0)
    return kinds.encoders.build(name, params, image_shape=shape)


@pytest.mark.parametrize("name", list(kinds.encoders.where()))
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 48, 40)])
def test_an_encoder_maps_images_to_its_declared_width_and_learns_everywhere(name, shape):
    net = build(name, shape)
    x = torch.randn(3, *shape)
    out = net(x)
    assert out.shape == (3, net.dim)
    (out.square().mean() * 100).backward()
    without = [key for key, p in net.named_parameters() if p.grad is None]
    assert not without
    assert all(p.requires_grad for p in net.parameters())
    rows = net.eval()(x)
    torch.testing.assert_close(net(x[[2, 0, 1]]), rows[[2, 0, 1]], rtol=1e-4, atol=1e-5)


def test_small_cnn_halves_the_image_four_times():
    net = build("small_cnn", width=8)
    assert net.dim == 32
    sizes = []
    for layer in net.layers:
        layer.register_forward_hook(lambda module, _, out: sizes.append(tuple(out.shape[1:])))
    net(torch.zeros(2, 3, 32, 32))
    assert sizes[::3] == [(8, 16, 16), (8, 8, 8), (16, 4, 4), (32, 2, 2)]
    assert build("small_cnn", (3, 7, 5))(torch.zeros(2, 3, 7, 5)).shape == (2, 128)


@pytest.mark.parametrize(
    ("model", "dim"),
    [("resnet18", 512), ("mobilenetv3_small_050", 1024), ("convnext_atto", 320), ("vit_tiny_patch16_224", 192)],
)
def test_timm_models_by_name(model, dim):
    assert kinds.encoders.get("timm").accepts(model) == {"model": model}
    net = build("timm", model=model)
    assert net.dim == dim
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, dim)
    assert net.training


def test_the_same_seed_gives_the_same_random_weights_and_another_seed_others():
    a, b = build("timm"), build("timm")
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    torch.manual_seed(1)
    other = kinds.encoders.build("timm", {}, image_shape=(3, 32, 32))
    assert not torch.equal(a.net.conv1.weight, other.net.conv1.weight)


def test_the_small_stem_keeps_the_resolution():
    sizes = {}
    for stem in ("standard", "small"):
        net = build("timm", stem=stem)
        net.net.layer1.register_forward_pre_hook(lambda _, x, stem=stem: sizes.update({stem: x[0].shape[2:]}))
        assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    assert sizes == {"standard": (8, 8), "small": (32, 32)}


def test_timm_refuses_what_it_cannot_build():
    timm = kinds.encoders.get("timm")
    assert timm.accepts("resnet81") is None and timm.accepts("simclr") is None
    with pytest.raises(UserError, match="no such model; did you mean 'resnet18'"):
        build("timm", model="resnet1")
    with pytest.raises(UserError, match="a tag names weights to download, and none are; write 'resnet18'"):
        build("timm", model="resnet18.a1_in1k")
    with pytest.raises(UserError, match="small stem is for ResNets, and 'convnext_atto' is none"):
        build("timm", model="convnext_atto", stem="small")
    with pytest.raises(UserError, match="'vit_tiny_patch16_224' does not take 3 x 8 x 8 images"):
        build("timm", (3, 8, 8), model="vit_tiny_patch16_224")
