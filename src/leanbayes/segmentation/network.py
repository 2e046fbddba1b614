"""The probabilistic U-Net: a U-Net whose answer depends on a latent code, so that it has as many as there are codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks, sampling
from ..batches import LatentOutput, SeesTargets, accept
from ..errors import ConfigError, DataError, PredictionError
from ..eval_mode import undisturbed
from ..latents.autoencoder import trial
from ..latents.config import GaussianLatents, Latents, OrderedLatents
from ..likelihoods import Segmentation
from ..models.segmentation import WIDTHS, Norm, block, check_options, unet
from .code import ConditionalCode, GaussianConditionalCode, OrderedConditionalCode


class ProbabilisticUNet(SeesTargets):
    """Any segmentation network with a latent code behind it: draws of the code are the answers of different annotators.

    trunk: a network from images (batch, channels, height, width) to feature maps of the same height and width: a U-Net
        without its last layer (``lb.models.unet(None)``), or one of your own.
    latents: `GaussianLatents` (Kohl et al., 2018), or `OrderedLatents`, whose code can be cut to any length (VND-PUNet,
        section 4.2 of variational nested dropout).
    shape: of one image. num_classes: channels of the output; 1 gives the logit of class 1.
    widths, norm: of the two convolutional networks that prior and posterior read images with. hidden, layers: of the
        1x1 convolutions that put code and feature maps together; hidden: as many as there are feature maps by default.
    ignore_index: labels of pixels that do not count, as of `Segmentation`.

    `fit` shows it the labels, (batch, height, width), or those of several annotators, (batch, annotators, height,
    width), of whom each step takes one for each image at random. In training mode a call with ``targets=`` returns the
    logits under a code drawn from q(z | x, y), the KL of each datum and the labels it was shown; every other call
    returns logits under a code drawn from p(z | x). `predict` computes the feature maps once for all samples.

    >>> import leanbayes as lb
    >>> model = ProbabilisticUNet(lb.models.unet(None, widths=(4, 8)), lb.OrderedLatents(6), shape=(1, 16, 16),
    ...                           widths=(4, 8))
    >>> images, masks = torch.randn(20, 1, 16, 16), torch.rand(20, 4, 16, 16) < 0.2
    >>> history = lb.fit(model, (images, masks), task="segmentation", epochs=1, progress=False)
    >>> lb.set_length_(model, 2)
    {'code': 2}
    >>> lb.predict(model, images, samples=4).probs.shape
    torch.Size([20, 2, 16, 16])
    """

    def __init__(
        self,
        trunk: nn.Module,
        latents: Latents,
        *,
        shape: tuple[int, int, int] = (1, 64, 64),
        num_classes: int = 2,
        widths: Sequence[int] = WIDTHS,
        norm: Norm = "batch",
        hidden: int | None = None,
        layers: int = 3,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        checks.module("trunk", trunk)
        sizes = _checked(latents, shape)
        channels, norm = check_options("", widths, norm)
        self.num_classes = _classes(num_classes)
        checks.whole_number("layers", layers, at_least=2)
        self.shape, self.latents, self.labelling = tuple(sizes), latents, Segmentation(ignore_index)
        like = next((p for p in trunk.parameters()), torch.zeros(()))
        maps = trial("trunk", trunk, like.new_zeros(2, *self.shape))
        if maps.ndim != 4 or maps.shape[2:] != self.shape[1:]:
            raise ConfigError(
                f"trunk: expected feature maps (batch, channels, {sizes[1]}, {sizes[2]}) of images of shape "
                f"{self.shape}, received {tuple(maps.shape)}"
            )
        inner = maps.shape[1] if hidden is None else checks.whole_number("hidden", hidden)
        self.trunk = trunk
        self.prior = encoder(sizes[0], channels, norm)
        self.posterior = encoder(sizes[0] + max(self.num_classes, 2), channels, norm)
        make: Any = OrderedConditionalCode if isinstance(latents, OrderedLatents) else GaussianConditionalCode
        self.code: ConditionalCode = make(channels[-1], latents)
        for site in sampling.sites(self.code).values():
            site.in_pieces = True  # as `_logits` goes through the maps
        # A 1x1 convolution of maps and code side by side is that of the maps plus a linear function of the code: the
        # first, most of the work, is the same for all codes.
        self.of_maps = nn.Conv2d(maps.shape[1], inner, 1)
        self.of_code = nn.Linear(latents.size, inner, bias=False)
        between = [part for _ in range(layers - 2) for part in (nn.ReLU(inplace=True), nn.Conv2d(inner, inner, 1))]
        self.combine = nn.Sequential(*between, nn.ReLU(inplace=True), nn.Conv2d(inner, self.num_classes, 1))
        self.to(like.device, maps.dtype)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor | LatentOutput:
        maps, prior = self.of_maps(self.trunk(x)), self.prior(x)
        if targets is None:
            return self._logits(maps, self.code(prior)[0])
        like = maps[:, :1].expand(-1, self.num_classes, -1, -1)
        labels = self.labelling.drawn(like, targets)
        classes = torch.arange(max(self.num_classes, 2), device=labels.device).reshape(1, -1, 1, 1)
        marked = (labels.unsqueeze(1) == classes).to(x) - 0.5
        code, kl = self.code(prior, self.posterior(torch.cat([x, marked], 1)))
        assert kl is not None
        return LatentOutput(self._logits(maps, code), kl, labels)

    def lengths(self, x: Any) -> Tensor:
        """The most probable length of an ordered code for each image, under the prior, (n,)."""
        code = self.code
        if not isinstance(code, OrderedConditionalCode):
            raise PredictionError(f"lengths: expected a model with OrderedLatents, received {self.latents}")
        x = accept(x, self, name="x")
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise DataError(f"x: expected images (n, {', '.join(map(str, self.shape))}), received {checks.short(x)}")
        found = []
        for images in x.to(next(self.parameters())).split(256):
            with undisturbed(self):
                found.append(code.tails_of(code.prior_tail(self.prior(images))).argmax(1) + 1)
        return torch.cat(found)

    def _logits(self, maps: Tensor, code: Tensor) -> Tensor:
        maps = maps.contiguous(memory_format=torch.channels_last)  # 1x1 convolutions take half the time on a CPU
        added = self.of_code(code)[:, None, None, :].expand(-1, 1, maps.shape[3], -1)
        added = added.contiguous().permute(0, 3, 1, 2)  # a row of pixels: short runs of numbers take longer to add
        rows = len(maps) if torch.is_grad_enabled() else max(1, PIECE // maps[0].numel())
        said = [self.combine(some + own) for some, own in zip(maps.split(rows), added.split(rows), strict=True)]
        return torch.cat(said).contiguous()  # a softmax over two channels that lie side by side takes twice as long

    def extra_repr(self) -> str:
        return f"shape={self.shape}, num_classes={self.num_classes}, latents={self.latents}"


PIECE = 2**16
"""Numbers in the maps that a code is put to at once, in each sample: what fits into a processor's cache."""

MOST_CLASSES = 2**16
"""Each is a channel of the network that sees the masks: more would be refused for want of memory, half-way."""


def _classes(value: int) -> int:
    return checks.whole_number("num_classes", checks.whole_number("num_classes", value), at_most=MOST_CLASSES)


def probabilistic_unet(
    latents: Latents,
    shape: tuple[int, int, int] = (1, 64, 64),
    num_classes: int = 2,
    *,
    widths: Sequence[int] = WIDTHS,
    norm: Norm = "batch",
) -> ProbabilisticUNet:
    """A probabilistic U-Net with a ready U-Net as its trunk; see `ProbabilisticUNet` and `leanbayes.models.unet`.

    >>> from leanbayes.latents.config import GaussianLatents
    >>> model = probabilistic_unet(GaussianLatents(6), (1, 16, 16), widths=(4, 8))
    >>> model(torch.zeros(3, 1, 16, 16)).shape
    torch.Size([3, 2, 16, 16])
    """
    channels = _checked(latents, shape)[0]  # before anything is drawn
    _classes(num_classes)
    trunk = unet(None, in_channels=channels, widths=widths, norm=norm)
    return ProbabilisticUNet(trunk, latents, shape=shape, num_classes=num_classes, widths=widths, norm=norm)


def _checked(latents: Latents, shape: Sequence[int]) -> list[int]:
    """The sizes of an image, if it and the latents are such."""
    if not isinstance(latents, (GaussianLatents, OrderedLatents)):
        checks.refuse("latents", "lb.GaussianLatents(6) or lb.OrderedLatents(6)", latents)
    sizes = checks.iterable_of("shape", shape, "sizes", checks.whole_number, hint="try (1, 64, 64)")
    if len(sizes) != 3:
        raise ConfigError(f"shape: expected (channels, height, width), received {tuple(sizes)}")
    return sizes


class Average(nn.Module):
    """The mean over all pixels, (batch, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean over dimensions 2 and 3."""
        return x.mean((2, 3))


def encoder(inputs: int, widths: Sequence[int], norm: Norm) -> nn.Sequential:
    """Convolutions at one resolution after the other, each half as fine, and the average: (batch, widths[-1])."""
    layers: list[nn.Module] = []
    for before, channels in zip([inputs, *widths[:-1]], widths, strict=True):
        layers += [nn.AvgPool2d(2, ceil_mode=True)] if layers else []
        layers.append(block(before, channels, norm))
    return nn.Sequential(*layers, Average())
