"""Pictures of a latent space, and the PNG files they are written to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.errors import DataError, PredictionError
from leanbayes.latents.pictures import progressive, traverse, tree, write_grid
from leanbayes.report.masks import png


@pytest.fixture(scope="module")
def model() -> lb.Autoencoder:
    torch.manual_seed(0)
    return lb.image_autoencoder(lb.OrderedLatents(8), (1, 8, 8), width=4)


def test_progressive_generation_is_one_draw_at_growing_length(model: lb.Autoencoder) -> None:
    found = progressive(model, 3, (2, 8), seed=5, task="bernoulli")
    assert found.shape == (2, 3, 1, 8, 8)
    assert torch.equal(found[1], model.sample(3, 8, seed=5, task="bernoulli"))
    assert torch.equal(found[0], model.sample(3, 2, seed=5, task="bernoulli"))
    assert progressive(model, 1, task="bernoulli").shape[0] == 4
    with pytest.raises(PredictionError, match=r"lengths\[1\]: expected a whole number from 1 to 8, received 9"):
        progressive(model, 3, (2, 9))


def test_the_tree_doubles(model: lb.Autoencoder) -> None:
    levels = tree(model, 4, seed=1, task="bernoulli")
    assert [len(level) for level in levels] == [1, 2, 4, 8]
    values = model.prior(1, 1)[0]
    code = torch.stack([values[0], values[1], -values[2]]).unsqueeze(0)
    torch.testing.assert_close(levels[2][1:2], model.decode(code, task="bernoulli"))


def test_traversals_move_one_latent(model: lb.Autoencoder) -> None:
    found = traverse(model, (0, 7), (-1.0, 0.0, 1.0), task="bernoulli")
    assert found.shape == (2, 3, 1, 8, 8)
    assert torch.equal(found[0, 1], found[1, 1])
    code = torch.zeros(1, 8)
    code[0, 7] = 1.0
    torch.testing.assert_close(found[1, 2], model.decode(code, task="bernoulli")[0])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"latents": (8,)}, PredictionError, r"latents\[0\]: expected a whole number from 0 to 7, received 8"),
        ({"latents": ()}, PredictionError, "latents: expected several"),
        ({"latents": 3}, PredictionError, "latents: expected several"),
        ({"values": ("a",)}, PredictionError, r"values\[0\]: expected a finite number"),
        ({"values": ()}, PredictionError, "values: expected several"),
        ({"start": torch.zeros(9)}, DataError, r"start: expected shape \(1 to 8,\)"),
        ({"start": torch.zeros(1, 8)}, DataError, r"start: expected shape \(1 to 8,\)"),
    ],
)
def test_wrong_traversals_are_refused(model: lb.Autoencoder, changes: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        traverse(model, **changes, task="bernoulli")
    with pytest.raises(PredictionError, match="lengths: expected several code lengths"):
        progressive(model, 3, (), task="bernoulli")


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_what_pillow_reads(tmp_path: Path, channels: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (5, 7, channels), dtype=torch.uint8)
    (tmp_path / "a.png").write_bytes(png(pixels.numpy()))
    read = torch.tensor(list(image.open(tmp_path / "a.png").tobytes())).reshape(5, 7, channels)
    assert torch.equal(read, pixels.long())
    path = write_grid(tmp_path / "grid.png", torch.rand(5, channels, 4, 4), columns=3, scale=1)
    assert image.open(path).size == (18, 12)


def test_wrong_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 or 3 channels"):
        write_grid(tmp_path / "a.png", torch.rand(2, 4, 8, 8))
    with pytest.raises(DataError, match="images: expected finite numbers"):
        write_grid(tmp_path / "a.png", torch.full((1, 1, 4, 4), torch.nan))
    assert list(tmp_path.iterdir()) == []
