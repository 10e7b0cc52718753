"""Vertical TokenMixup where keys have positions or are reduced: the keys that are added, against plain formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dense
import vitmix
from support import close, same
from vitmix.lab.families import CLASSES, FAMILIES

BANK = 3


def heads(projected: Tensor, count: int) -> Tensor:
    return projected.unflatten(-1, (count, -1)).transpose(1, 2)


def placed(bias: Tensor, places: Tensor) -> Tensor:
    """The bias `(B, H, N, N + k)` of own keys and of added keys, which have that of the position they come from."""
    own = bias.expand(len(places), -1, -1, -1)
    added = torch.stack([own[sample][:, :, row] for sample, row in enumerate(places.tolist())])
    return torch.cat([own, added], dim=-1)


def attention(query: Tensor, key: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5 + bias).softmax(-1)


def stacked(attn: Any, tokens: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of a projection that stacks them with the values."""
    query, key = tokens @ attn.qkv.weight[:32].T, every @ attn.qkv.weight[32:64].T
    if getattr(attn, "q_bias", None) is not None:
        query = query + attn.q_bias  # there is none of keys
    return heads(query, 2), heads(key, 2)


def beit(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    attn = model.blocks[1].attn
    return attention(*stacked(attn, tokens, every), placed(attn._get_rel_pos_bias(), places))


def relative(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    attn = model.blocks[1].attn
    return attention(*stacked(attn, tokens, every), placed(attn.rel_pos.get_bias(), places))


def hugging_face_beit(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    layer = model.beit.layers[1]
    query, key = layer.attention.q_proj(tokens), layer.attention.k_proj(every)
    return attention(heads(query, 2), heads(key, 2), placed(layer.relative_position_bias((4, 4)), places))


def rotated(values: Tensor, sine: Tensor, cosine: Tensor) -> Tensor:
    turned = torch.stack([-values[..., 1::2], values[..., ::2]], dim=-1).flatten(-2)
    return values * cosine + turned * sine


def eva(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    attn, rope = model.blocks[1].attn, model.rope.get_embed().double()
    query, key = stacked(attn, tokens, every)
    rows = torch.cat([torch.zeros_like(rope[:1]), rope])  # the class token is not turned
    rows[0, rows.shape[1] // 2 :] = 1
    turns = torch.cat([rows.expand(len(places), -1, -1), rows[places]], dim=1).unsqueeze(1)
    sine, cosine = turns.chunk(2, dim=-1)
    own = tokens.shape[1]
    return attention(rotated(query, sine[:, :, :own], cosine[:, :, :own]), rotated(key, sine, cosine))


def pvt(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    attn, own = model.stages[0].blocks[1].attn, tokens.shape[1]
    image = tokens.transpose(1, 2).unflatten(2, (16, 16))
    reduced = attn.norm(attn.sr(image).flatten(2).transpose(1, 2))
    keys = torch.cat([reduced, every[:, own:]], dim=1)
    return attention(heads(attn.q(tokens), 1), heads(attn.kv(keys)[..., :16], 1))


def hugging_face_pvt(model: Any, tokens: Tensor, every: Tensor, places: Tensor) -> Tensor:
    attn, own = model.pvt_v2.encoder.layers[0].blocks[1].attention, tokens.shape[1]
    image = tokens.transpose(1, 2).unflatten(2, (16, 16))
    reduced = attn.layer_norm(attn.spatial_reduction(image).flatten(2).transpose(1, 2))
    keys = torch.cat([reduced, every[:, own:]], dim=1)
    return attention(heads(attn.query(tokens), 1), heads(attn.key(keys), 1))


TWINS = {
    "BEiT": beit,
    "ViT, relative positions": relative,
    "Hugging Face BEiT": hugging_face_beit,
    "EVA-02": eva,
    "PVT v2": pvt,
    "Hugging Face PVT v2": hugging_face_pvt,
}


def spread(name: str, maps: Tensor) -> Tensor:
    """Attention to own tokens and added ones: that to a reduced key is shared out over its cell."""
    if "PVT" not in name:
        return maps
    cells = dense.even_cells(16, 8)
    return torch.cat([dense.spread_cells(maps[..., :-BANK], (16, 16), (cells, cells)), maps[..., -BANK:]], dim=-1)


def built(name: str) -> nn.Module:
    family = FAMILIES[name]
    if not family.available:
        pytest.skip(f"{family.package} is not installed")
    torch.manual_seed(0)
    model = family.build().double()
    for module in model.modules():  # drawn noise would hide the formulas
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):
            module.drop_prob = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model


def logits(output: Any) -> Tensor:
    return (output if isinstance(output, Tensor) else output.logits).detach()


@pytest.mark.parametrize("name", TWINS)
def test_added_keys(name: str) -> None:
    model, family = built(name).train(), FAMILIES[name]
    images = torch.randn(4, 3, family.size, family.size, dtype=torch.float64)
    entered: list[Tensor] = []
    with vitmix.create(f"tl_align + vtm(block=1, tokens={BANK})", CLASSES).attach(model) as mixing:
        batch = mixing.mix(images, torch.arange(4))
        block = mixing.reader.block(1)
        handle = block.module.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
        with dense.Watch() as watch:
            model(batch.images)
        handle.remove()
        tape, places = batch.tape, batch.tape.actors[0].positions[0]
        model.eval()
        tapped = model(images)
    same(logits(tapped), logits(model(images)))
    bank = torch.stack([tape.tokens[0][sample, row] for sample, row in enumerate(places.tolist())])
    tokens = entered[0]
    with torch.no_grad():
        every = block.norm(torch.cat([tokens, bank], dim=1))
        expected = TWINS[name](model, every[:, : tokens.shape[1]], every, places)
    computed = [maps for maps in watch.maps if maps.shape[2] == tokens.shape[1] + BANK]  # others are statistics
    assert len(computed) == 1
    close(computed[0][:, :, : tokens.shape[1]], expected, 1e-9)
    shares = torch.cat([tape.token_share[0], tape.token_share[-1].gather(1, places)], dim=1)
    carried = (spread(name, expected).mean(1) @ shares.unsqueeze(-1)).squeeze(-1)
    close(tape.token_share[1], (carried + tape.token_share[0]) / 2, 1e-9)


def test_later_stages_take_tokens_of_their_own_stage() -> None:
    """In a PVT v2 of depths 2, 1, 1, 2, block 5 can only take those of block 4, and block 2 none at all."""
    model = FAMILIES["PVT v2"].build()
    learner = vitmix.Learner(model, vitmix.create("vtm(block=5, tokens=2)", CLASSES))
    images = torch.randn(4, 3, 64, 64)
    learner(images, torch.arange(4)).loss.backward()
    with learner.mixing.mixer.attach(model) as mixing:
        batch = mixing.mix(images, torch.arange(4))
        model(batch.images)
        assert [each.shape for each in batch.tape.actors[0].positions] == [(4, 2)]
    with pytest.raises(ValueError, match="has no earlier block of the same stage"):
        vitmix.create("vtm(block=2)", CLASSES).attach(model)
