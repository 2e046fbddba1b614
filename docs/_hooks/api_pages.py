"""The API pages, generated from ``leanbayes.__all__``: an entry for every public name."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import leanbayes
from leanbayes import data, models
from leanbayes.registry import methods

GROUPS = {
    "convert": ("Convert", "plan Plan bayesianize_ restore_ auto Selection"),
    "methods": ("Methods", ""),  # every registered method
    "priors": (
        "Priors and likelihoods",
        "Normal EmpiricalNormal LogUniform StudentT ScaleMixture Classification Dirichlet Regression Segmentation",
    ),
    "training": (
        "Training",
        "fit auto Selection follow ELBO kl_sum warmup tune_noise_ Tuning recalibrate_ Callback callbacks EarlyStopping "
        "CoordinateDescent Transition parameter_groups SGD NaturalGradientSGD LightningCallback HFTrainerMixin "
        "TensorBoardTracker MLflowTracker WandbTracker",
    ),
    "prediction": ("Prediction", "predict Predictive using"),
    "evaluation": (
        "Evaluation",
        "evaluate Evaluation evaluate_each compare Comparison calibrate_ conformalize_ Pixels Corruptions Attack kappa",
    ),
    "latents": (
        "Latent codes",
        "Autoencoder image_autoencoder OrderedLatents GaussianLatents JointLatents PointLatents set_length_ "
        "evaluate_generation Generation",
    ),
    "segmentation": ("Segmentation", "ProbabilisticUNet probabilistic_unet"),
    "deployment": (
        "Deployment",
        "cost benchmark Benchmark scaling Scaling prune_ pruning_curve PruningCurve zero_means_ extract Cascade "
        "distill nested_student width_correlation WidthCorrelation save load export read_export quantize_export "
        "set_width_ widths "
        "importance likely_width truncate_ push_to_hub from_hub",
    ),
    "estimators": ("scikit-learn estimators", "BayesClassifier BayesRegressor"),
    "errors": ("Errors and version", "LeanBayesError LeanBayesWarning __version__"),
}
MODULES = {"data": ("Data", data), "models": ("Networks", models)}


def groups() -> dict[str, tuple[str, list[str]]]:
    """Title and names by page; public names that no group lists are on a page of their own."""
    found = {slug: (title, names.split()) for slug, (title, names) in GROUPS.items()}
    found["methods"][1].extend(name for name in methods() if name in leanbayes.__all__)
    known = {name for _, names in found.values() for name in names}
    if rest := [name for name in leanbayes.__all__ if name not in known]:
        found["other"] = ("Other", rest)
    found = {slug: (title, [n for n in names if n in leanbayes.__all__]) for slug, (title, names) in found.items()}
    return found | {
        slug: (title, [n for n in dir(module) if not n.startswith("_")]) for slug, (title, module) in MODULES.items()
    }


def pages() -> dict[str, str]:
    """The text of every API page by its path."""
    found = {"api/index.md": _index()}
    for slug, (title, names) in groups().items():
        home: Any = MODULES[slug][1] if slug in MODULES else leanbayes
        found[f"api/{slug}.md"] = f"# {title}\n\n" + "\n".join(_entry(home, name, slug) for name in names)
    return found


def _index() -> str:
    lines = [
        "# API",
        "",
        "Every public name; `import leanbayes as lb` gives them as `lb.fit` and so on.",
        "",
    ]
    for slug, (title, names) in groups().items():
        home: Any = MODULES[slug][1] if slug in MODULES else leanbayes
        lines += [f"## {title}", "", "| name | |", "| --- | --- |"]
        lines += [f"| [`{name}`]({slug}.md#{home.__name__}.{name}) | {_line(getattr(home, name))} |" for name in names]
        lines.append("")
    return "\n".join(lines)


def _entry(home: Any, name: str, slug: str) -> str:
    """A heading and a directive for mkdocstrings, which reads signature and docstring where the object is defined."""
    value, public = getattr(home, name), f"{home.__name__}.{name}"
    if not hasattr(value, "__qualname__"):
        return f'<h2 id="{public}"><code>{public}</code></h2>\n\n{_line(value)}\n'
    members = "false" if slug in ("methods", "models") else "null"
    return textwrap.dedent(f"""
        [](){{ #{public} }}

        ::: {value.__module__}.{value.__qualname__}
            options:
              heading: {public}
              toc_label: {name}
              members: {members}
        """)


def _line(value: Any) -> str:
    """The first sentence of a docstring, fit for a cell of a table."""
    if isinstance(value, str):
        return f"The version of the package, a string such as `{value}`."
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("|", "&#124;")
