"""New members: one network for each seed, from a function that makes them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

#: The most members of an ensemble: more is a slip of the pen, and would run until memory ends.
MAX_MEMBERS = 10_000


class SharedInstanceWarning(UserWarning):
    """An ensemble was given one module instead of a function that makes modules."""


def member_seed(seed: int, member: int) -> int:
    """The seed of one member: the same whatever the number of members, unlike for unlike seeds."""
    return int(np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)[0]) >> 1


def check_members(members: int) -> None:
    """Raise unless ``members`` is a number of members that an ensemble can have."""
    if not isinstance(members, int) or members < 1:
        raise ValueError(f"members must be an integer of at least 1, got {members!r}")
    if members > MAX_MEMBERS:
        raise ValueError(f"members must be at most {MAX_MEMBERS}, got {members}")


def make_members(
    make_member: Callable[[], nn.Module] | nn.Module, members: int, seed: int
) -> list[nn.Module]:
    """``members`` modules of their own, each drawn from its :func:`member_seed`."""
    if isinstance(make_member, nn.Module):
        warnings.warn(
            "Ensemble was given a module, not a function that makes one; its copies are "
            "re-initialised, as identical members would learn the same thing. Pass "
            "lambda: MyNetwork(…) instead",
            SharedInstanceWarning,
            stacklevel=4,
        )
        make_member = _remaker(make_member)
    modules: list[nn.Module] = []
    for j in range(members):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(member_seed(seed, j))
            module = make_member()
        if not isinstance(module, nn.Module):
            raise ValueError(f"make_member must return an nn.Module, got {type(module).__name__}")
        if any(module is other for other in modules):
            raise ValueError(
                "make_member returned the same module twice; it must make a new one at each call"
            )
        modules.append(module)
    return modules


def _remaker(instance: nn.Module) -> Callable[[], nn.Module]:
    """A function that copies ``instance`` and re-initialises its parameters."""
    for name, module in instance.named_modules():
        own = any(True for _ in module.parameters(recurse=False))
        if own and not callable(getattr(module, "reset_parameters", None)):
            raise ValueError(
                f"cannot re-initialise {name or 'it'} (no reset_parameters); pass a function"
            )

    def make() -> nn.Module:
        fresh = copy.deepcopy(instance)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        return fresh

    return make
