"""Soups and selection: means of weights, statistics estimated anew, never worse than the best."""

import pytest
import torch
from torch import Tensor, nn

from dissensus.ensemble import Ensemble, best_member, greedy_soup
from tests.ensemble.networks import Odd, batch_norm_cnn, batch_norm_mlp

LOADER = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (8, 8, 5)]


def shaken(ens: Ensemble) -> Ensemble:
    for name, buffer in ens.named_buffers():
        if "running" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return ens


@pytest.mark.parametrize("members", [None, [2, 0]])
def test_a_soup_has_the_mean_of_weights_and_statistics(members: list[int] | None) -> None:
    ens = shaken(Ensemble(batch_norm_cnn, members=3))
    chosen = [ens.member(j) for j in (members or range(3))]
    soup = ens.soup(members=members)
    for name, tensor in soup.state_dict().items():
        own = torch.stack([member.state_dict()[name] for member in chosen])
        wanted = own.mean(0) if own.is_floating_point() else own[0]
        torch.testing.assert_close(tensor, wanted)
    assert all(p.requires_grad and p.is_leaf for p in soup.parameters())
    assert Ensemble(Odd, members=2).soup().flags.dtype == torch.bool


def test_statistics_estimated_anew_are_the_means_over_batches() -> None:
    ens = shaken(Ensemble(lambda: nn.Sequential(batch_norm_mlp(), nn.Dropout(0.5)), members=3))
    before = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    soup = ens.soup([(x, torch.zeros(len(x))) for x in LOADER])
    linear, norm = soup[0][0], soup[0][1]
    hidden = [linear(x) for x in LOADER]
    torch.testing.assert_close(norm.running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    assert norm.momentum == 0.1  # as it was
    assert not soup.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in ens.state_dict().items())
    assert torch.equal(ens.soup(LOADER)(LOADER[0]), soup(LOADER[0]))  # no dropout in between


def test_the_statistics_of_a_backbone_stay() -> None:
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    backbone[1].running_mean.fill_(3.0)
    ens = Ensemble.on_features(backbone, batch_norm_mlp, members=2)
    soup = ens.soup(LOADER)
    assert torch.equal(soup[0][1].running_mean, torch.full((4,), 3.0))
    hidden = [soup[1][0](soup[0](x)).mean(0) for x in LOADER]
    torch.testing.assert_close(soup[1][1].running_mean, torch.stack(hidden).mean(0))


def classifiers(*biases: float) -> Ensemble:
    """Members that say class 1 where x > bias; x is one number."""
    modules = []
    for bias in biases:
        module = nn.Linear(1, 2)
        module.weight.data = torch.tensor([[0.0], [1.0]])
        module.bias.data = torch.tensor([bias, 0.0])
        modules.append(module)
    return Ensemble.from_members(modules)


def test_a_greedy_soup_takes_members_best_first_while_they_do_no_harm() -> None:
    x = ((torch.arange(200) - 99.5) / 100)[:, None]
    y = (x[:, 0] > 0).long()
    ens = classifiers(0.9, -0.1, 0.3, -0.2)
    assert best_member(ens, x, y) == 1
    soup, kept = greedy_soup(ens, x, y)
    # From −0.1 alone: with −0.2 it is −0.15, worse; with 0.3 it is 0.1, as good; with 0.9 worse.
    assert kept == [1, 2]
    torch.testing.assert_close(soup.bias, torch.tensor([0.1, 0.0]))


@pytest.mark.parametrize("combine", ["probability", "mean"])
@pytest.mark.parametrize("loader", [None, LOADER])
def test_a_greedy_soup_is_never_worse_than_the_best_member(
    combine: str, loader: list[Tensor] | None
) -> None:
    alone = 0
    for seed in range(12):
        ens = shaken(Ensemble(batch_norm_mlp, members=3, seed=seed, combine=combine))
        x = torch.randn(40, 4)
        y = torch.randint(3, (40,)) if combine == "probability" else torch.randn(40, 3)
        outputs = torch.stack([ens.member(j).eval()(x) for j in range(3)]).detach()
        soup, kept = greedy_soup(ens, x, y, loader)
        if combine == "probability":
            scores = (outputs.argmax(-1) == y).double().mean(-1)
            got = (soup(x).argmax(-1) == y).double().mean()
        else:
            scores = -(outputs - y).square().sum(-1).mean(-1)
            got = -(soup(x) - y).square().sum(-1).mean().detach()
        assert kept[0] == best_member(ens, x, y) == int(scores.argmax())
        assert float(got) >= float(scores.max()) - 1e-6
        alone += len(kept) == 1
    assert alone > 0  # where a soup that re-estimates one member's statistics could be worse
