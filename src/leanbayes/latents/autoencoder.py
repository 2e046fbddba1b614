"""An encoder and a decoder of the user's with a latent code between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import checks, likelihoods
from ..batches import LatentOutput, accept
from ..convert import record
from ..errors import ConfigError, DataError, PredictionError
from ..eval_mode import kept_buffers, undisturbed
from ..likelihoods import Likelihood
from ..sampling import mix, using
from .code import Code, GaussianCode, PointCode
from .config import GaussianLatents, JointLatents, Latents, OrderedLatents, PointLatents
from .cut import cut_inputs_
from .joint import JointCode
from .ordered import OrderedCode

ROWS = 256  # data encoded or decoded at once

_CODES: dict[type[Latents], Callable[[int, Any], Code]] = {
    GaussianLatents: lambda features, c: GaussianCode(features, c.size),
    OrderedLatents: OrderedCode,
    JointLatents: JointCode,
    PointLatents: lambda features, c: PointCode(features, c.size, c.weight, c.projections),
}


class Autoencoder(nn.Module):
    """Any encoder and decoder with a latent code between them: with `OrderedLatents` a VND-AE, with others its rivals.

    encoder: takes inputs (batch, *shape); whatever it returns is flattened to features, from which linear layers of the
        code make means, standard deviations and tails. decoder: takes codes (batch, size), returns (batch, *shape), in
        the units of a likelihood: logits for "bernoulli" and "discretized-logistic".
    latents: `OrderedLatents`, `GaussianLatents`, `JointLatents` or `PointLatents`. shape: of one input.

    A forward pass returns the decoder's outputs, the KL of each datum, and the inputs as what the outputs describe:
    `fit` needs no targets, and ignores labels. `predict` draws codes like any other random site, one noise for all data
    of a sample; `sample` draws one for each image. Encoder and decoder may be Bayesian themselves (`bayesianize_`).

    >>> import leanbayes as lb
    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
    >>> decoder = nn.Sequential(nn.Linear(8, 64), nn.Unflatten(1, (1, 8, 8)))
    >>> model = Autoencoder(encoder, decoder, lb.OrderedLatents(8), shape=(1, 8, 8))
    >>> images = torch.rand(20, 1, 8, 8)
    >>> history = lb.fit(model, images, task="bernoulli", epochs=1, progress=False)
    >>> model.encode(images, length=3).shape, model.sample(5, length=3).shape
    (torch.Size([20, 3]), torch.Size([5, 1, 8, 8]))
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latents: Latents, *, shape: tuple[int, ...]) -> None:
        super().__init__()
        checks.module("encoder", encoder)
        checks.module("decoder", decoder)
        if type(latents) not in _CODES:
            checks.refuse("latents", f"one of {', '.join(kind.__name__ for kind in _CODES)}", latents)
        sizes = checks.iterable_of("shape", shape, "sizes", checks.whole_number, hint="try (1, 28, 28)")
        self.shape, self.latents = tuple(sizes), latents
        like = next((p for p in encoder.parameters()), torch.zeros(()))
        features = trial("encoder", encoder, like.new_zeros(2, *self.shape))
        if len(features) != 2 or features.numel() == 0:
            raise ConfigError(
                f"encoder: expected features for each of 2 inputs of shape {self.shape}, received a tensor of shape "
                f"{tuple(features.shape)}; the first dimension must be the batch"
            )
        code = _CODES[type(latents)](features[0].numel(), latents).to(like.device, features.dtype)
        images = trial("decoder", decoder, features.new_zeros(2, code.size))
        if tuple(images.shape) != (2, *self.shape):
            raise ConfigError(
                f"decoder: expected outputs of shape {self.shape} from codes of {code.size} numbers, received "
                f"{tuple(images.shape[1:])}"
            )
        self.encoder, self.code, self.decoder = encoder, code, decoder

    def forward(self, x: Tensor) -> LatentOutput:
        self._check_shape(x)
        code, kl = self.code(self.features(x))
        return LatentOutput(self.decoder(code), kl, x)

    def features(self, x: Tensor) -> Tensor:
        """What the encoder makes of inputs, (batch, features)."""
        return self.encoder(x).flatten(1)  # type: ignore[no-any-return]

    @property
    def length(self) -> int:
        """How long codes are: as set by `leanbayes.set_length_`, or the whole size."""
        code = self.code
        return code.width or code.limit if isinstance(code, OrderedCode) else code.size

    def encode(self, x: Any, length: int | Literal["likely"] | None = None) -> Tensor:
        """The code of each input without noise, (n, length).

        length: how many latents; None for as many as are set, or all. "likely" keeps of each input its most probable
        length, with zeros behind: (n, size).
        """
        x = self.images(x)
        if isinstance(length, str) and length == "likely":
            ordered = self._ordered("length='likely'")
            return torch.cat(list(self._each(x, lambda block: ordered.likely(self.features(block)))))
        length, code = self._length(length), self.code
        means = code.head.mean if isinstance(code, OrderedCode) else code.means  # whatever length is set
        return torch.cat(list(self._each(x, lambda block: means(self.features(block))[:, :length])))

    def lengths(self, x: Any) -> Tensor:
        """The most probable code length of each input, the mode of q(z | x), (n,)."""
        code = self._ordered("lengths")
        return torch.cat(list(self._each(self.images(x), lambda block: code.lengths(self.features(block)))))

    def decode(self, code: Any, *, task: Any = None) -> Tensor:
        """The expected image of each code, (n, *shape); what a shorter code lacks is zero.

        code: (n, length), length from 1 to the size of the code. task: the likelihood, where the model was not trained
        by `fit`.
        """
        meaning = self.likelihood(task)
        code = accept(code, self, name="code")
        if not isinstance(code, Tensor) or code.ndim != 2 or not 1 <= code.shape[1] <= self.code.size:
            received = tuple(code.shape) if isinstance(code, Tensor) else type(code).__name__
            raise DataError(f"code: expected shape (n, 1 to {self.code.size}), received {received}")
        check_finite("code", code)
        like = next(self.decoder.parameters(), code)
        whole = nn.functional.pad(code, (0, self.code.size - code.shape[1])).to(like)
        return torch.cat([meaning.mean_and_noise(images)[0] for images in self._each(whole, self.decoder)])

    def reconstruct(self, x: Any, length: int | Literal["likely"] | None = None, *, task: Any = None) -> Tensor:
        """The expected image of each input's code, cut to a length: ``decode(encode(x, length))``."""
        return self.decode(self.encode(x, length), task=task)

    def prior(self, n: int, seed: int = 0) -> Tensor:
        """Codes drawn from the prior at full length, (n, size); the i-th depends on (seed, i) alone."""
        n, seed = checks.whole_number("n", n, error=PredictionError), checks.seed(seed, error=PredictionError)
        generators = (torch.Generator().manual_seed(mix(seed, i)) for i in range(n))
        like = next(self.decoder.parameters(), torch.zeros(()))
        return self.code.from_prior(torch.stack([self.code.prior_noise(g) for g in generators])).to(like)

    def sample(self, n: int, length: int | None = None, seed: int = 0, *, task: Any = None) -> Tensor:
        """Images generated from the prior, (n, *shape); the i-th depends on (seed, i) and the length alone."""
        length = self._length(length)
        return self.decode(self.prior(n, seed)[:, :length], task=task)

    def cut_(self, length: int | None = None) -> None:
        """Leave the first latents only, without noise: the decoder reads fewer numbers. For `leanbayes.extract`."""
        length = self._length(length)
        code = self.code.deployed(length).train(self.training)
        if length < self.code.size:
            cut_inputs_(self.decoder, self.code.size, length, next(self.parameters()))
        self.code = code

    def _each(self, values: Tensor, function: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        """What a part of the model makes of values, block by block, at the means of its weights."""
        device = next((p.device for p in self.parameters()), values.device)
        for block in values.split(ROWS):
            with undisturbed(self), using(mean_only=True):
                result = function(block.to(device))
            yield result

    def images(self, x: Any) -> Tensor:
        """Inputs as a tensor in the precision of the model; refused where they do not fit or are not finite."""
        x = accept(x, self, name="x")
        if not isinstance(x, Tensor):
            raise DataError(f"x: expected a tensor (n, {', '.join(map(str, self.shape))}), received {type(x).__name__}")
        self._check_shape(x)
        if not x.is_floating_point():
            raise DataError(f"x: expected floats, received {x.dtype}; pass x.float(), or x / 255 for bytes as pixels")
        check_finite("x", x)
        return x.to(next((p.dtype for p in self.parameters()), x.dtype))

    def _check_shape(self, x: Tensor) -> None:
        if x.shape[1:] != self.shape or x.ndim == 0:
            raise DataError(f"x: expected inputs of shape (n, *{self.shape}), received {tuple(x.shape)}")

    def _length(self, length: Any) -> int:
        if length is None:
            return self.length
        return checks.whole_number("length", length, at_most=self.code.size, error=PredictionError)

    def _ordered(self, what: str) -> OrderedCode:
        if not isinstance(self.code, OrderedCode):
            raise PredictionError(f"{what}: expected a model with OrderedLatents, received {self.latents}")
        return self.code

    def likelihood(self, task: Any = None) -> Likelihood:
        """What the outputs mean: the task, or what the model was fitted to."""
        return likelihood_of(self, task)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, latents={self.latents}"


def likelihood_of(model: nn.Module, task: Any = None) -> Likelihood:
    """What the outputs of a latent model mean: the task, or what the model was fitted to."""
    if task is not None:
        return likelihoods.likelihood(task)
    found = record.get(model)
    if found is None or found.likelihood is None:
        raise PredictionError(
            "this model was not trained by leanbayes.fit, so what its outputs mean is not known; pass "
            'task="bernoulli", "discretized-logistic" or "regression"'
        )
    return likelihoods.from_dict(found.likelihood)


def trial(name: str, module: nn.Module, inputs: Tensor) -> Tensor:
    """What a module makes of zeros; it is left as it was."""
    try:
        with kept_buffers(module), undisturbed(module):
            output = module(inputs)
    except Exception as error:  # of the user's module
        raise ConfigError(
            f"{name}: expected a module that takes a tensor of shape (batch, {', '.join(map(str, inputs.shape[1:]))}), "
            f"but it raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor) or output.ndim < 2:
        raise ConfigError(f"{name}: expected it to return a tensor (batch, ...), received {checks.short(output)}")
    return output


def check_finite(name: str, values: Tensor) -> None:
    if values.is_floating_point() and not bool(values.isfinite().all()):
        where = (~values.isfinite()).nonzero()[0].tolist()
        raise DataError(f"{name}: expected finite numbers, received {values[tuple(where)].item()} at {where}")
