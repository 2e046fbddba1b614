"""Predictions for many files: one process and a cluster of two nodes say the same, bit for bit, and lose nothing."""

import json
import time

import numpy as np
import pytest

import leanbayes as lb
from leanbayes.cli import USAGE, many_files
from leanbayes.cli.saved import open_model
from leanbayes.integrations import cluster as spread
from leanbayes.recipes.experiment import reproduce

from ..test_foreign_models import package

pytestmark = pytest.mark.extra
RECIPE = "patch-prior"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with tables."""
    arrow, parquet = package("pyarrow"), package("pyarrow.parquet")
    folder, rng = tmp_path_factory.mktemp("many"), np.random.RandomState(0)

    def rows(count):
        x = rng.randn(count, 2)
        return {"a": 100 + 5 * x[:, 0], "b": x[:, 1], "y": (x[:, 0] > 0).astype(int)}

    parquet.write_table(arrow.table(rows(80)), folder / "train.parquet")
    (folder / "new").mkdir()
    for number in range(6):
        parquet.write_table(arrow.table(rows(5 + number)), folder / "new" / f"{number}.parquet")
    return folder


@pytest.fixture(autouse=True)
def model(home, run_json, monkeypatch):
    monkeypatch.chdir(home)
    if not (home / "m.safetensors").exists():
        quick = ["--epochs", "1", "--batch-size", "16", "--model", "mlp", "--out", "m.safetensors"]
        run_json("train", "--data", "train.parquet", "--target", "y", *quick)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one processor each; `cluster.worker` is the second one."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_worker_niceness", "0")  # or workers starve on a machine that tests keep busy
    ray, utils = package("ray"), package("ray.cluster_utils")
    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    made = utils.Cluster(initialize_head=True, head_node_args=small | {"include_dashboard": False})
    made.worker, made.small = made.add_node(**small), small
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


def test_one_process_writes_what_predict_says(home, run_json):
    pq = package("pyarrow.parquet")
    done = run_json("predict", "m.safetensors", "new/*.parquet", "--out", "p.parquet", "--samples", "4")
    table = pq.read_table("p.parquet")
    assert done["count"] == len(table) == 5 + 6 + 7 + 8 + 9 + 10
    assert done["files"] == 6
    model, training = open_model(home / "m.safetensors", None)
    assert table["row"].to_pylist()[:7] == [0, 1, 2, 3, 4, 0, 1]
    x = many_files.inputs_of(str(home / "new" / "3.parquet"), training, scaled=False)
    expected = lb.predict(model, x, samples=4)
    mine = table.filter([one.endswith("3.parquet") for one in table["file"].to_pylist()])
    assert mine["entropy"].to_pylist() == expected.entropy.tolist()
    assert mine.schema.names[:4] == ["file", "row", "label", "confidence"]


def test_images_and_arrays(home, run_json):
    pq, image, rng = package("pyarrow.parquet"), package("PIL.Image"), np.random.RandomState(0)
    lb.save(lb.models.build("lenet5"), home / "images.safetensors", task="classification")
    (home / "pictures").mkdir()
    for number in range(3):
        image.fromarray(rng.randint(0, 255, (28, 28), dtype=np.uint8)).save(home / "pictures" / f"{number}.png")
        np.save(home / f"{number}.npy", rng.rand(2, 1, 28, 28).astype(np.float32))
    options = ["--model", "leanbayes.models:lenet5", "--scaled", "--samples", "1", "--out", "i.parquet"]
    run_json("predict", "images.safetensors", "pictures", *options)
    assert [one[-5:] for one in pq.read_table("i.parquet")["file"].to_pylist()] == ["0.png", "1.png", "2.png"]
    assert run_json("predict", "images.safetensors", "[01].npy", *options)["count"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["new/*.parquet"], USAGE, "--out: expected a .parquet file"),
        (["none/*.parquet", "--out", "x.parquet"], USAGE, "expected files that match"),
        (["new/*.parquet", "--out", "x.parquet", "--address", "auto"], USAGE, "--engine ray as well"),
        (["new/*.parquet", "--out", "x.parquet", "--engine", "ray", "--address", "nowhere"], USAGE, "host:port"),
        (["new/*.parquet", "--out", "x.parquet", "--engine", "ray", "--address", "127.0.0.1:9"], USAGE, "not answer"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(arguments, code, message, run, home):
    package("ray")
    received, _, errors = run("predict", "m.safetensors", *arguments)
    assert message in errors
    assert received == code
    assert not list(home.glob("*x.parquet*"))


def test_a_file_that_cannot_be_read_leaves_no_half_result(run, home):
    (home / "bad").mkdir(exist_ok=True)
    (home / "bad" / "0.parquet").write_bytes((home / "new" / "0.parquet").read_bytes())
    (home / "bad" / "1.parquet").write_bytes(b"PAR1 no")
    (home / "y.parquet").write_bytes(b"before")
    code, _, errors = run("predict", "m.safetensors", "bad/*.parquet", "--out", "y.parquet")
    assert code != 0
    assert "1.parquet: expected a readable .parquet file" in errors
    assert (home / "y.parquet").read_bytes() == b"before"
    assert not list(home.glob("*.partial"))


def test_a_cluster_says_the_same_bit_for_bit(cluster, run_json, home):
    arguments = ["predict", "m.safetensors", "new/*.parquet", "--samples", "4", "--out"]
    here = run_json(*arguments, "here.parquet")
    there = run_json(*arguments, "there.parquet", "--engine", "ray", "--address", cluster.address)
    assert {**here, "out": ""} == {**there, "out": ""}
    tables = [package("pyarrow.parquet").read_table(home / name) for name in ("here.parquet", "there.parquet")]
    assert tables[0].equals(tables[1])


def test_a_recipe_on_two_nodes_gives_the_same_json(cluster, run, tmp_path):
    out = tmp_path / "r.json"
    code, _, told = run("reproduce", RECIPE, "--engine", "ray", "--address", cluster.address, "--out", out)
    assert code == 0, told
    received, expected = json.loads(out.read_text()), json.loads(json.dumps(reproduce(RECIPE)))
    for one in (received, expected):
        one.pop("seconds"), one.pop("machines")
    assert received == expected


def test_a_lost_node_loses_nothing(cluster):
    """Half of the work is on the node that is killed: blocks and tasks run again on the other."""
    ray = package("ray")

    def make():  # with all they need inside: workers do not see the tests
        import pyarrow
        import ray

        node = ray.get_runtime_context().get_node_id()

        def work(block):
            time.sleep(0.3)
            return pyarrow.table({"block": [block], "square": [block**2], "node": [node]})

        return work

    def piece(number):
        time.sleep(0.3)
        return number**2

    with spread.connected(cluster.address, "test"):
        answers, killed = [], None
        for answer in spread.map_blocks(ray, make, list(range(16)), workers=2):
            answers += answer.to_pylist()
            if killed is None and len({a["node"] for a in answers}) == 2:
                killed = cluster.worker.node_id
                cluster.remove_node(cluster.worker, allow_graceful=False)
        assert [(a["block"], a["square"]) for a in answers] == [(n, n**2) for n in range(16)]
        assert killed is not None, "both nodes worked"
        cluster.worker = cluster.add_node(**cluster.small)
        found = {}
        for number, value in spread.run_tasks(ray, piece, [(n,) for n in range(10)]):
            found[number] = value
            if len(found) == 3:
                cluster.remove_node(cluster.worker, allow_graceful=False)
        assert found == {n: n**2 for n in range(10)}


def test_an_error_of_a_worker_is_the_users_own(cluster):
    ray = package("ray")

    def fail(number):
        from leanbayes.errors import LeanBayesError

        raise LeanBayesError(f"piece {number} cannot be done")

    with spread.connected(cluster.address, "test"), pytest.raises(lb.LeanBayesError, match="piece 0 cannot be done"):
        list(spread.run_tasks(ray, fail, [(0,)]))
