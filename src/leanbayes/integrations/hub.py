"""Models on the Hugging Face Hub: safetensors up and down, with a model card that says how good they are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from .. import checks
from ..artifacts import load, save
from ..errors import ArtifactError, ConfigError
from ..evaluation.result import Evaluation
from ..files import write_bytes, write_text
from ..optional import require
from .card import FILE, card


def push_to_hub(
    model: nn.Module,
    repo: str,
    *,
    evaluation: Evaluation | None = None,
    task: Any = None,
    description: str = "",
    license: str | None = None,
    private: bool = False,
    message: str = "Upload a leanbayes model",
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload a model to the Hugging Face Hub and return the address of the commit.

    The repository gets model.safetensors, as `save` writes it, and a README.md with the evaluation: its tables, its
    plots as pictures, report.html and evaluation.json. All files are made first and uploaded as one commit. The
    repository is made if there is none.

    repo: "user/name". evaluation: of this model, from `evaluate`; its plots need 'leanbayes[plots]'. task: see `save`.
    description: Markdown for the top of the card. license: an identifier of the Hub such as "apache-2.0". private: of a
    repository that is made. token: None is the one that ``hf auth login`` stored. endpoint: of a Hub of your own.

    `pip install 'leanbayes[hub]'`.
    """
    checks.module("model", model)
    hub, name = _package("push_to_hub"), _name(repo, with_user=True)
    if evaluation is not None:
        checks.instance("evaluation", evaluation, Evaluation, "what lb.evaluate returned")
        require("matplotlib", "plots", "push_to_hub(evaluation=...)")
    for field, value in {"description": description, "message": message, "license": license or ""}.items():
        checks.instance(field, value, str, "text")
    checks.flag("private", private)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save(model, folder / FILE, task=task)
        text, pictures = card(model, name, evaluation, license, description)
        write_text(folder / "README.md", text)
        if evaluation is not None:
            evaluation.save_json(folder / "evaluation.json")
            evaluation.save_html(folder / "report.html")
        if pictures:
            (folder / "plots").mkdir()
        for file, picture in pictures.items():
            write_bytes(folder / file, picture)
        api = hub.HfApi(endpoint=endpoint, token=token, library_name="leanbayes")
        try:
            api.create_repo(name, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message=message))
        except Exception as error:  # of the network, the Hub, or the package
            raise _failed(error, f"push_to_hub: {name} could not be uploaded", api.endpoint) from error


def from_hub(
    repo: str,
    *,
    into: nn.Module,
    revision: str | None = None,
    file: str = FILE,
    token: str | None = None,
    endpoint: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    allow_nonfinite: bool = False,
) -> nn.Module:
    """Make a model the one of a repository on the Hugging Face Hub, in place, and return it.

    Only a safetensors file is downloaded; no code of the repository is run and nothing is unpickled. Whatever fails
    leaves the model as it was.

    repo: "user/name", as in `push_to_hub`. into, allow_nonfinite: see `load`. revision: a branch, tag or commit.
    token: for a private repository. endpoint: of a Hub of your own. cache_dir: where downloads are kept.

    `pip install 'leanbayes[hub]'`.
    """
    checks.module("into", into)
    hub, name = _package("from_hub"), _name(repo, with_user=False)
    checks.instance("file", file, str, "the name of a file")
    if not file.endswith(".safetensors"):
        raise ConfigError(f"file: expected the name of a .safetensors file, received {checks.short(file)}")
    try:
        path = hub.hf_hub_download(
            name, file, revision=revision, token=token, endpoint=endpoint, cache_dir=cache_dir, library_name="leanbayes"
        )
    except Exception as error:  # of the network, the Hub, or the package
        raise _failed(error, f"from_hub: {name}: {file} could not be downloaded", endpoint) from error
    return load(path, into=into, allow_nonfinite=allow_nonfinite)


def _package(purpose: str) -> Any:
    """The package with its modules, which are no attributes of it until somebody imports them."""
    package = require("huggingface_hub", "hub", purpose)
    for module in ("utils", "errors"):
        require(f"huggingface_hub.{module}", "hub", purpose)
    return package


def _name(repo: Any, with_user: bool) -> str:
    """The name of a repository, by the rules of the Hub; checked before anything is written or sent."""
    wanted = '"user/name" of letters, digits, "-", "_" and ".", at most 96 of them'
    checks.instance("repo", repo, str, wanted)
    try:
        _package("repo").utils.validate_repo_id(repo)
    except ValueError as error:
        raise ConfigError(f"repo: expected {wanted}, received {checks.short(repo)} ({error})") from error
    if with_user and "/" not in repo:
        raise ConfigError(f"repo: expected {wanted}, received {checks.short(repo)}; whose is it? 'user/{repo}'")
    return str(repo)


def _failed(error: Exception, what: str, endpoint: str | None) -> ArtifactError:
    where = endpoint or os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answered = isinstance(error, _package("the Hub").errors.HfHubHTTPError)
    status = error.response.status_code if answered else None  # type: ignore[attr-defined]
    hint = {
        401: "; log in with 'hf auth login', or pass token=",
        403: "; this token may not do that: it needs write access",
        404: "; there is no such repository, revision or file, or it is private and needs a token",
    }.get(status or 0, "" if status else "; is the address right, and is there a network?")
    return ArtifactError(f"{what} ({where}): {' '.join(str(error).split())[:400]}{hint}")
