"""What the operator of a server chooses. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from .. import checks


@dataclass(frozen=True)
class Settings:
    """Defaults and limits of a server; `leanbayes serve` has an option for each.

    Args:
        samples: networks drawn for a request that does not say.
        max_samples: the most that a request may ask for.
        seed: of the draws, for a request that does not say: the same request has the same answer.
        min_width: the smallest width that a request may choose, of a network with ordered channels.
        min_confidence: answer only where the most probable class has at least this probability, and abstain otherwise.
        max_entropy: abstain where the entropy is above this (nats).
        max_information: abstain where the mutual information of label and weights is above this (nats).
        max_set: abstain where the conformal prediction set has more classes than this (or none).
        max_std: of a regression, abstain where the standard deviation is above this, in units of the target.
        max_batch: the most data that are predicted together.
        max_wait: milliseconds to wait for more requests once the model is free; 0 takes those that are there.
        max_queue: requests that may be under way in a worker; one more is answered 429.
        max_rows: data in one request.
        max_body: bytes of one request.
        max_pixels: of an image, before it is resized to what the network takes.
        deadline: milliseconds until a request is answered 429, the default and the most a request may choose.
        drain: seconds that requests under way have to end when the server stops.
    """

    samples: int = 32
    max_samples: int = 256
    seed: int = 0
    min_width: float = 0.05
    min_confidence: float = 0.0
    max_entropy: float | None = None
    max_information: float | None = None
    max_set: int | None = None
    max_std: float | None = None
    max_batch: int = 64
    max_wait: float = 2.0
    max_queue: int = 256
    max_rows: int = 64
    max_body: int = 8 * 2**20
    max_pixels: int = 16 * 2**20
    deadline: float = 10_000.0
    drain: float = 30.0

    def __post_init__(self) -> None:
        for name in ("samples", "max_samples", "max_batch", "max_queue", "max_rows", "max_body", "max_pixels"):
            checks.whole_number(checks.option(name), self.__dict__[name])
        checks.samples(self.max_samples)
        checks.whole_number("--samples", self.samples, at_most=self.max_samples, hint="--max-samples allows more")
        checks.whole_number("--seed", self.seed, at_least=0, at_most=2**63 - 1)
        checks.number("--min-width", self.min_width, above=0, at_most=1)
        checks.probability("--min-confidence", self.min_confidence)
        for name in ("max_entropy", "max_information", "max_std"):
            if self.__dict__[name] is not None:
                checks.number(checks.option(name), self.__dict__[name], at_least=0)
        if self.max_set is not None:
            checks.whole_number("--max-set", self.max_set)
        checks.number("--max-wait", self.max_wait, at_least=0)
        checks.number("--deadline", self.deadline, at_least=1)
        checks.number("--drain", self.drain, above=0)
