"""The HTTP side: what is answered, what is refused and with which status."""

import asyncio
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.serve.config import Settings
from tests.serve.helpers import image_predictor, number_predictor, package, running, serving
from tests.serve.test_bodies import image, npy

pytestmark = pytest.mark.extra
X = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def predictor():
    package("starlette")
    return image_predictor(classes=("a", "b", "c", "d"))


def test_concurrent_requests_are_batched_and_each_answer_is_that_of_predict(predictor):
    async def scenario(client):
        asked = [client.predict(x[None].tolist(), samples=4 + n % 2) for n, x in enumerate(X.repeat(5, 1, 1, 1))]
        found = await asyncio.gather(*asked)
        _, _, metrics = await client("GET", "/metrics")
        return found, metrics.decode()

    found, metrics = serving(scenario, predictor, max_wait=50.0)
    for number, (status, answer) in enumerate(found):
        alone = lb.predict(predictor.model.model, X[number % 6][None], samples=4 + number % 2, task="classification")
        assert status == 200
        torch.testing.assert_close(
            torch.tensor(answer["predictions"][0]["probs"]), alone.probs[0], rtol=1e-4, atol=1e-5
        )
        assert answer["predictions"][0]["label"] == "abcd"[int(alone.labels)]
    count = next(line for line in metrics.splitlines() if line.startswith("leanbayes_batch_data_count"))
    assert int(count.split()[1]) < 10  # 30 requests
    assert 'leanbayes_requests_total{code="200"} 30' in metrics


def test_json_npy_and_images_say_the_same(predictor):
    body = image((6, 6), "L", colour=51)
    pixels = np.full((1, 1, 6, 6), 51, np.uint8)

    async def scenario(client):
        by_image = await client("POST", "/predict?samples=3", body, "image/png")
        by_npy = await client("POST", "/predict?samples=3", npy(pixels), "application/x-npy; charset=binary")
        by_json = await client.predict((pixels / 255).tolist(), "?samples=3")
        return [json.loads(by_image[2]), json.loads(by_npy[2]), by_json[1]]

    found = serving(scenario, predictor)
    assert found[0].pop("image_size") == [6, 6]
    assert found[0] == found[1] == found[2]
    assert found[0]["samples"] == 3


def test_options_come_with_the_address_or_the_document(predictor):
    async def scenario(client):
        one = X[:1].tolist()
        return [
            await client.predict(one, "?samples=5&draws=true"),
            await client.predict(one, samples=5, draws=True),
            await client.predict(one, "?min_confidence=1"),
            await client.predict(one, "?samples=5&seed=9"),
            await client.predict(one, "?samples=1000"),
            await client.predict(one, "?width=0.5"),
        ]

    found = serving(scenario, predictor)
    assert [status for status, _ in found] == [200, 200, 200, 200, 400, 400]
    assert found[0] == found[1]
    assert np.array(found[0][1]["predictions"][0]["draws"]).shape == (5, 4)
    assert found[2][1]["predictions"][0]["label"] is None
    assert "is below 1" in found[2][1]["predictions"][0]["reasons"][0]
    assert found[3][1]["predictions"] != found[0][1]["predictions"]
    assert found[4][1]["error"]["message"] == "samples: expected an integer from 1 to 256, received '1000'"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("GET", "/nothing"), 404),
        (("GET", "/predict"), 405),
        (("POST", "/health"), 405),
        (("POST", "/predict", b"{}"), 415),
        (("POST", "/predict", b"{}", "text/csv"), 415),
        (("POST", "/predict", b"{}", "application/x-python-pickle"), 415),
        (("POST", "/predict", b"{}", "application/json"), 400),
        (("POST", "/predict", b'{"inputs": [[1, 2]]}', "application/json"), 400),
        (("POST", "/predict", b"\x80\x04.", "application/x-npy"), 400),
        (("POST", "/predict", b"x" * 2000, "application/json"), 413),
        (("POST", "/predict", b"", "application/json", (("content-length", "x"),)), 400),
    ],
)
def test_what_is_wrong_gets_its_status_and_no_traceback(predictor, request_, status):
    async def scenario(client):
        return await client(*request_)

    found, _, content = serving(scenario, predictor, max_body=1000)
    assert found == status
    error = json.loads(content)["error"]
    assert error["status"] == status
    assert "Traceback" not in error["message"]


def test_a_wrong_address_or_method_is_told_the_right_one(predictor):
    async def scenario(client):
        return [await client("GET", "/predictions"), await client("GET", "/predict")]

    (_, _, missing), (_, headers, wrong) = serving(scenario, predictor)
    assert json.loads(missing)["error"]["message"].startswith("expected one of /predict, /model")
    assert json.loads(wrong)["error"]["message"] == "/predict: expected POST, received GET"
    assert headers[b"allow"] == b"POST"


def test_a_body_without_a_length_is_limited_too_and_must_arrive_in_time(predictor):
    async def scenario(client):
        large = await client("POST", "/predict", kind="application/json", pieces=[b"x" * 600, b"x" * 600])
        slow = await client("POST", "/predict", kind="application/json", pieces=[b"{", None])
        return large[0], large[1][b"connection"], slow[0]

    assert serving(scenario, predictor, max_body=1000, deadline=50.0) == (413, b"close", 408)


def test_a_client_that_sends_too_much_sees_why(predictor):
    """Over a socket: a connection that is closed while data arrive is reset, and the answer is lost."""
    from leanbayes.serve.app import make_app

    with running(make_app(predictor, Settings(max_body=1000))) as port:
        large = (b"x" * 2**20 for _ in range(300))
        for body, kind, expected in ((large, "application/json", 413), (b"x" * 2**24, "text/csv", 415)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/predict", body, {"Content-Type": kind})
            reply = connection.getresponse()
            assert reply.status == expected
            assert json.loads(reply.read())["error"]["status"] == expected
            connection.close()


@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)])
def test_a_refused_body_is_answered_before_it_ends_and_read_for_a_while(predictor, expect, monkeypatch):
    from leanbayes.serve import app

    monkeypatch.setattr(app, "LINGER", 1.0)
    told = ["POST /predict HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {2**30}", *expect]

    def send_for_ever(client):
        while True:
            client.sendall(b"x" * 2**16)
            time.sleep(0.01)

    with (
        running(app.make_app(predictor, Settings(max_body=1000))) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
    ):
        client.sendall("\r\n".join([*told, "", ""]).encode())
        assert client.recv(2**16).startswith(b"HTTP/1.1 413")  # of a gigabyte nothing has been sent
        start = time.monotonic()
        with pytest.raises(ConnectionError):  # it ends, though the body does not
            send_for_ever(client)
        assert time.monotonic() - start > 0.5


class Slow:
    """A model that computes when it is told to, and fails if it is told that."""

    def __init__(self, predictor):
        self.card, self.prepare, self.inner = predictor.card, predictor.prepare, predictor
        self.go = threading.Event()
        self.fails = False

    def __call__(self, ask, parts):
        assert self.go.wait(10)
        if self.fails:
            raise RuntimeError("the secret of the model")
        return self.inner(ask, parts)


def test_too_many_requests_are_told_to_come_again(predictor):
    slow = Slow(predictor)

    async def scenario(client):
        waiting = [asyncio.create_task(client.predict(X[:1].tolist())) for _ in range(3)]
        await asyncio.sleep(0.05)
        refused = await client("POST", "/predict", b"{}", "application/json")
        health, _, _ = await client("GET", "/health")
        slow.go.set()
        answered = [status for status, _ in await asyncio.gather(*waiting)]
        return refused[0], refused[1][b"retry-after"], health, answered, (await client.predict(X[:1].tolist()))[0]

    assert serving(scenario, slow, max_queue=3) == (429, b"1", 200, [200, 200, 200], 200)


def test_a_deadline_that_passes_is_told(predictor):
    slow = Slow(predictor)

    async def scenario(client):
        try:
            return await client.predict(X[:1].tolist(), "?deadline=30")
        finally:
            slow.go.set()

    status, answer = serving(scenario, slow)
    assert status == 429
    assert "no answer within" in answer["error"]["message"]


def test_a_fault_of_ours_says_nothing_but_that(predictor, caplog):
    slow = Slow(predictor)
    slow.fails = True
    slow.go.set()

    async def scenario(client):
        return await client.predict(X[:1].tolist())

    status, answer = serving(scenario, slow)
    assert status == 500
    assert answer["error"]["message"] == "the server failed; its log says more"
    assert "the secret of the model" in caplog.text


def test_requests_under_way_are_answered_when_it_stops(predictor):
    slow = Slow(predictor)

    async def scenario(client):
        task = asyncio.create_task(client.predict(X[:1].tolist()))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.05, slow.go.set)
        return task  # the application is told to end now

    async def outer(client):
        return await (await scenario(client))

    assert serving(outer, slow)[0] == 200


def test_pages_load_nothing_from_elsewhere_and_numbers_are_served(predictor):
    async def scenario(client):
        return [await client("GET", path) for path in ("/", "/docs", "/openapi.json", "/model", "/ready", "/metrics")]

    found = serving(scenario, predictor)
    assert [status for status, _, _ in found] == [200] * 6
    for _, headers, content in found[:2]:
        assert b"default-src 'none'" in headers[b"content-security-policy"]
        assert b"http://" not in content
        assert b"https://" not in content
    assert b"min_confidence" in found[1][2]
    assert json.loads(found[3][2])["model"]["classes"] == ["a", "b", "c", "d"]


def test_numbers_are_served():
    predictor = number_predictor(scale=(100.0, 10.0))

    async def scenario(client):
        return await client.predict([[1.0, 2.0]]), await client.predict([[1.0, 2.0]], max_std=0.001)

    (status, answer), (_, doubtful) = serving(scenario, predictor, samples=4)
    assert status == 200
    assert answer["predictions"][0]["interval"][0] < answer["predictions"][0]["mean"]
    assert doubtful["predictions"][0]["mean"] is None
