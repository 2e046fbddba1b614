"""Hostile requests: 2,000 changed bodies, and schemathesis where it is installed; each gets 4xx or the right answer."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.serve import bodies
from leanbayes.serve.config import Settings
from leanbayes.serve.options import chosen, options
from tests.serve.helpers import floats, image_predictor, package, running, serving
from tests.serve.mutations import mutants
from tests.serve.test_bodies import image, npy

pytestmark = [pytest.mark.extra, pytest.mark.long]
LIMITS = {"max_pixels": 10_000, "max_rows": 4}
QUERIES = (
    "",
    "",
    "?samples=3",
    "?samples=0",
    "?samples=%00",
    "?seed=5&draws=true",
    "?width=1",
    "?min_confidence=2",
    "?a=b",
)


def requests(count):
    """(kind, body, query) that begin as right ones."""
    source = random.Random(0)
    one = np.linspace(0, 1, 36).reshape(1, 1, 6, 6)
    seeds = {
        bodies.JSON: json.dumps({"inputs": one.round(2).tolist(), "samples": 2}).encode(),
        bodies.NPY: npy(one.astype(np.float32)),
        "image/png": image((6, 6), "L", colour=9),
        "image/jpeg": image((6, 6), "L", "JPEG", colour=9),
        "image/gif": image((6, 6), "L", "GIF", colour=9),
    }
    each = count // len(seeds)
    for number, (kind, seed) in enumerate(seeds.items()):
        for body in [seed] * 10 + list(mutants(seed, each - 10, seed=number)):
            yield (
                source.choice((kind, kind, kind, source.choice(bodies.TYPES), "text/html")),
                body,
                source.choice(QUERIES),
            )


def test_changed_bodies_get_4xx_or_the_answer_of_predict():
    predictor = image_predictor()

    async def scenario(client):
        found = []
        for number, (kind, body, query) in enumerate(requests(2000)):
            pieces = [body[:7], body[7:]] if number % 5 == 0 else None
            found.append((kind, body, query, await client("POST", "/predict" + query, body, kind, pieces=pieces)))
        return found

    found = serving(scenario, predictor, samples=4, max_samples=64, max_wait=0.0, **LIMITS)
    statuses = [reply[0] for *_, reply in found]
    assert len(found) == 2000
    assert {200, 400, 415} <= set(statuses) <= {200, 400, 413, 415}
    settings = Settings(samples=4, max_samples=64)
    known = options(settings, "classification", has_width=False, is_conformal=False, can_sample=True)
    for kind, body, query, (status, _, content) in found:
        answer = json.loads(content)
        if status != 200:
            assert answer["error"]["status"] == status
            assert "Traceback" not in answer["error"]["message"]
            assert ".py" not in answer["error"]["message"]
            continue
        read = bodies.parse(kind, body, (1, 6, 6), **LIMITS)
        given = dict(pair.split("=") for pair in query.removeprefix("?").split("&") if pair)
        values = chosen({**given, **read.options}, known)
        x = floats(read.inputs)
        alone = lb.predict(predictor.model.model, x, values["samples"], values["seed"], task="classification")
        probs = torch.tensor([one["probs"] for one in answer["predictions"]])
        torch.testing.assert_close(probs, alone.probs, rtol=1e-4, atol=1e-5)


def test_requests_by_the_openapi_document(tmp_path):
    """schemathesis makes requests from the document, right and wrong ones, and checks answers against it."""
    package("schemathesis")
    package("starlette")
    from leanbayes.serve.app import make_app

    checks = "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance"
    options = ["--checks", checks, "--phases", "examples,coverage,fuzzing", "--max-examples", "300", "--seed", "0"]
    with running(make_app(image_predictor(), Settings(samples=2, max_samples=8, max_wait=0.0))) as port:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/openapi.json", *options]
        command += ["--suppress-health-check", "all"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
    cases = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert cases is not None, done.stdout
    assert int(cases[1].replace(",", "")) > 500
    print(done.stdout[-1500:])
