"""The methods as subcommands, and suggestions for misspelt names; no torch here."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro

from .. import priors
from ..errors import ConfigError
from ..registry import methods

if TYPE_CHECKING:
    MethodChoice = Any


@dataclass(frozen=True)
class Plain:
    """Leave the network as it is, to compare with."""


def kebab(name: str) -> str:
    """A class name as a name on the command line.

    >>> kebab("MeanField")
    'mean-field'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _method_choice() -> Any:
    """A union of the registered methods: each becomes a subcommand with its fields as options."""
    known = methods()
    for cls in known.values():  # a method that holds another (the members of an ensemble) has a choice among the others
        for field in fields(cls):
            if field.type == "Method | None":
                cls.__annotations__[field.name] = Union[(*(c for c in known.values() if c is not cls), None)]
    each = [Annotated[c, tyro.conf.subcommand(kebab(n), description=c.summary)] for n, c in known.items()]
    return Union[(*each, Annotated[Plain, tyro.conf.subcommand("plain", description=Plain.__doc__)])]


if not TYPE_CHECKING:
    MethodChoice = _method_choice()


def rules(method: Any, only: str | None) -> Any:
    """The method, limited to a type of `torch.nn` or a name glob; None where the network stays plain.

    >>> import leanbayes as lb
    >>> rules(lb.Dropout(), "Linear")
    {<class 'torch.nn.modules.linear.Linear'>: Dropout(rate=None, elsewhere=0.05)}
    """
    from torch import nn

    if isinstance(method, Plain):
        if only is not None:
            raise ConfigError(f"only: expected a method to limit, received plain with --only {only}; drop one of them")
        return None
    if only is None:
        return method
    kind = vars(nn).get(only.removeprefix("nn."))
    return {kind if isinstance(kind, type) and issubclass(kind, nn.Module) else only: method}


@contextlib.contextmanager
def without_examples() -> Iterator[None]:
    """Run a block in which the docstrings of methods and priors, which become help texts, end before their doctests."""
    named = [vars(priors)[name] for name in priors.__all__]
    kept = {cls: cls.__doc__ for cls in [*methods().values(), *named]}
    try:
        for cls, text in kept.items():
            cls.__doc__ = (text or "").partition(">>>")[0].rstrip()
        yield
    finally:
        for cls, text in kept.items():
            cls.__doc__ = text


def closest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name.

    >>> closest("trian", ["plan", "train"])
    "did you mean 'train'? known: plan, train"
    """
    known = list(known)
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(known)}"


def misspelt(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The words that resemble a method or a prior, each with the name that was probably meant.

    >>> list(misspelt(["--epochs", "3", "mean-feild", "MeanField"]))
    [('mean-feild', 'mean-field'), ('MeanField', 'mean-field')]
    """
    known = [*map(kebab, methods()), "plain", *(kebab(name) for name in priors.__all__ if name != "Prior")]
    for word in arguments:
        if word.startswith("-") or word.replace("_", "-") in known:
            continue
        if close := difflib.get_close_matches(kebab(word), known, n=1, cutoff=0.75):
            yield word, close[0]
