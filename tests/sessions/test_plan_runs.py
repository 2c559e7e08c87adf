"""``planner calibrate --plan``: from a suggestion to a refined calibration that the next suggestion uses."""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_accelerator
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.configuration import Configurations
from planner.domain.network import Network
from planner.domain.samples import TimedStep
from planner.formats.calibration import CALIBRATION
from planner.formats.samples import read_samples
from planner.formats.suggestion import parse_answers
from planner.formats.summaries import VERIFICATION
from planner.probes.gpu import DeviceLostError, Gpu
from planner.probes.machine import describe_cpu
from planner.probes.steps import PlanRun, WantedRun
from planner.probes.timing import Timing
from planner.sources.overheads import measured_steps_of

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
CPU = describe_cpu()[0]
TARGET = 8


def base(accelerator: Accelerator = CPU, **environment: str) -> Calibration:
    """Return a calibration of this machine whose kernels have simple rates."""
    entries = (
        Entry("kernels", "gemm", "", "fp32", "", "flop.rate", {}, {"flop": 1e-11}),
        Entry("kernels", "pointwise", "", "any", "", "traffic.bytes", {}, {"calls": 1e-6, "bytes": 1e-10}),
    )
    return Calibration("mine", accelerator.name, entries, node=Node(1, accelerator), environment=environment)


@pytest.fixture
def asked(run: Run) -> Callable[..., Path]:
    """Return a function: calibration, words of suggest -> the file of the suggestion."""

    def call(calibration: Calibration, *words: str) -> Path:
        Path("mine.json").write_text(CALIBRATION.dump(calibration))
        arguments = ("--network", "mlp", "--target-batch", str(TARGET), "--calibration", "mine.json", *words)
        code, out, _ = run("suggest", *arguments, "--json")
        assert code in (0, 4)
        Path("plan.json").write_text(out)
        return Path("plan.json")

    return call


@pytest.fixture
def times(instruments: Instruments) -> dict[int, float]:
    """Let runs take so long by sub-batch [s]; those of others are not made."""
    found: dict[int, float] = {}

    def timed_runs(
        network: Network, cells: Sequence[WantedRun], seconds: float, *, device: str, **_named: Any
    ) -> tuple[PlanRun, ...]:
        assert device == "cpu"
        assert 0 < seconds < 60
        return tuple(
            PlanRun(TimedStep(network, cell.sub_batch, found[cell.sub_batch])) if cell.sub_batch in found else PlanRun()
            for cell in cells
        )

    instruments["run_plans"] = timed_runs
    return found


def passes_s(run: Run, *calibrations: str) -> dict[int, float]:
    """Return the predicted forward and backward passes of one sub-batch, by its samples."""
    given = [word for name in calibrations for word in ("--calibration", name)]
    code, out, _ = run("predict", "--network", "mlp", "--sub-batch", "1,2,4,8,16", *given, "--json")
    assert code == 0
    return {
        one["configuration"]["sub_batch"]: sum(
            float(term["seconds"]) for term in one["terms"] if term["name"] in ("forward", "backward")
        )
        for one in json.loads(out)["predictions"]
    }


def test_the_next_suggestion_uses_the_runs_and_says_so(
    run: Run, asked: Callable[..., Path], times: dict[int, float]
) -> None:
    before = {p["configuration"]["sub_batch"]: p["position"] for p in json.loads(asked(base()).read_text())["plans"]}
    assert set(before) == {1, 2, 4, 8}
    plain = passes_s(run, "mine.json")
    best = min(before, key=lambda n: before[n])
    times.update({n: (20.0 if n == best else 1.0) * plain[n] for n in before})
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("planner: running mlp 4 times for at most 5")
    better = CALIBRATION.read("better.json")
    factors = {one.configuration.sub_batch: one.factor for one in better.measured_steps}
    assert factors == pytest.approx({n: times[n] / plain[n] for n in before})
    assert {(one.of, one.cluster) for one in better.measured_steps} == {("passes", "")}
    steps = read_samples("better.samples.csv")[0]
    assert (sorted(steps.number["sub_batch"].tolist()), set(steps.text["kind"].tolist())) == ([1, 2, 4, 8], {"step"})
    sub_batches = np.array(list(plain))
    passes = measured_steps_of((better,), "mlp", "local", "pytorch", "fp32")
    assert passes is not None
    used = passes.factors(Configurations.having(sub_batch=sub_batches))
    assert (used > 1).all()  # that of a sub-batch which was not run, too
    for given in (("better.json", "mine.json"), ("mine.json", "better.json")):
        assert list(passes_s(run, *given).values()) == pytest.approx([*(list(plain.values()) * used)])
    words = ("--network", "mlp", "--target-batch", str(TARGET), "--calibration", "better.json", "--json")
    ((_, suggestion),) = parse_answers(run("suggest", *words)[1], "stdout").suggestions
    assert suggestion.plans[0].prediction.configuration.sub_batch != best
    for plan in suggestion.plans:
        (word,) = (one.message for one in plan.prediction.warnings if one.code == "measured_run")
        assert "4 measured runs of sub-batches 1, 2, 4 and 8 were used, of calibration better" in word


def test_runs_that_could_not_be_made_are_said(run: Run, asked: Callable[..., Path], times: dict[int, float]) -> None:
    asked(base())
    arguments = ("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    code, out, err = run(*arguments)
    assert (code, out) == (5, "")
    assert re.search(
        r"a run of mlp must be made in time, in memory and on a quiet machine, got none; --budget \d+s suffices\n", err
    )
    assert not Path("better.json").exists()
    asked(base(command="planner calibrate --samples once", made="by hand"))
    times[4] = 0.1
    code, _, err = run(*arguments)
    assert code == 0
    assert "no run was made in time of sub-batch 8 in fp32" in err
    assert "sub-batch 4" not in err
    assert dict(CALIBRATION.read("better.json").environment) == {"made": "by hand"}  # the command made the base alone
    assert int(re.findall(r"; --budget (\d+)s suffices for every plan\n", err)[0]) > 60  # the default, which did not


def test_the_budget_that_is_named_lets_every_plan_be_run(
    run: Run, asked: Callable[..., Path], times: dict[int, float]
) -> None:
    """Steps that take a minute each where they are expected to: two of each are the least."""
    document = json.loads(asked(base()).read_text())
    for plan in document["plans"]:
        for term in plan["prediction"]["terms"]:
            passes = term["name"] in ("forward", "backward")
            term["seconds"] = 30.0 * plan["configuration"]["accumulation_steps"] if passes else 0.0
    Path("plan.json").write_text(json.dumps(document))
    times[4] = 120.0
    err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")[2]
    (named,) = re.findall(r"--budget (\d+)s suffices", err)
    assert 0.9 * int(named) == pytest.approx(2 * 4 * 120.0, rel=0.25)
    assert 0.9 * int(named) > 2 * 4 * 120.0


def test_runs_of_a_busy_machine_and_one_that_failed_are_left_out_and_said(
    run: Run, asked: Callable[..., Path], instruments: Instruments
) -> None:
    asked(base())
    quiet = [1, 2]

    def timed_runs(network: Network, cells: Sequence[WantedRun], *_rest: Any, **_named: Any) -> tuple[PlanRun, ...]:
        made = {n: PlanRun(TimedStep(network, n, 0.1), 1.0 if n in quiet else 1.3) for n in (1, 2, 4)}
        return tuple(made.get(cell.sub_batch) or PlanRun(failed="no algorithm of such sizes") for cell in cells)

    instruments["run_plans"] = timed_runs
    arguments = ("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    code, _, err = run(*arguments)
    assert code == 0
    assert "no run could be made of sub-batch 8 in fp32: no algorithm of such sizes\n" in err
    slow, remedy = "sub-batch 4 in fp32: 1.3 times slower than in quiet", "run it again when the machine is quiet\n"
    assert (
        f"runs of mlp on a machine more than 1.2 times slower than in quiet are left out, got {slow}; {remedy}" in err
    )
    better = CALIBRATION.read("better.json")
    assert better.warnings == ()
    assert {one.configuration.sub_batch for one in better.measured_steps} == {1, 2}
    assert sorted(read_samples("better.samples.csv")[0].number["sub_batch"].tolist()) == [1, 2]
    quiet.clear()
    code, _, err = run(*arguments, "--force")
    assert code == 5
    assert "in time, in memory and on a quiet machine, got none (sub-batch 8 in fp32: no algo" in err
    assert err.endswith(f"; {remedy}")


def test_a_budget_that_leaves_no_time_is_refused_at_once(
    run: Run, asked: Callable[..., Path], instruments: Instruments
) -> None:
    asked(base())
    instruments["clock_s"] = itertools.count(step=2).__next__
    arguments = ("--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    code, _, err = run("calibrate", *arguments, "--budget", "1s")
    assert code == 5
    assert re.fullmatch(r"planner: a run of mlp must be made in time.*, got none; --budget \d+s suffices\n", err)


def test_a_lost_device_is_a_sentence(run: Run, asked: Callable[..., Path], instruments: Instruments) -> None:
    asked(base())

    def timed_runs(*_: Any, **__: Any) -> tuple[PlanRun, ...]:
        raise DeviceLostError("an illegal memory access", "making mlp")

    instruments["run_plans"] = timed_runs
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert code == 2
    said = "a device that goes on computing, got 'cpu, which failed in making mlp: an illegal memory access'; try"
    assert said in err


def test_where_every_run_fails_the_reason_is_in_the_refusal(
    run: Run, asked: Callable[..., Path], instruments: Instruments
) -> None:
    asked(base())
    instruments["run_plans"] = lambda _net, cells, *_, **__: (PlanRun(failed="no kernel"),) * len(cells)
    code, out, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert (code, out) == (5, "")
    assert "got none (sub-batch" in err
    assert "in fp32: no kernel" in err
    assert not Path("better.json").exists()


def test_a_suggestion_of_another_accelerator_is_refused(run: Run) -> None:
    arguments = ("--network", "mlp", "--target-batch", "64", "--cluster", "dgx1-v100", "--json")
    Path("plan.json").write_text(run("suggest", *arguments)[1])
    code, out, err = run("calibrate", "--plan", "plan.json", "--out", "better.json")
    assert (code, out) == (5, "")
    assert err.startswith("planner: --plan must be of an accelerator of this machine, got v100-")
    assert err.endswith(
        "run it on a node of that cluster, or time their steps where they run and give them as a runs file "
        "by --runs FILE.csv\n"
    )


def test_a_calibration_of_other_circumstances_is_refused(
    run: Run, asked: Callable[..., Path], times: dict[int, float]
) -> None:
    asked(base(framework="pytorch 0.1"))
    times[8] = 0.1
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert code == 5
    assert "circumstance framework must be 'pytorch 0.1', as in calibration mine, got 'pytorch " in err


@pytest.mark.parametrize("cudnn", ["91002", "90501"])
def test_the_gpu_that_a_suggestion_is_of_runs_it_with_the_library_that_it_was_calibrated_with(
    run: Run, asked: Callable[..., Path], instruments: Instruments, cudnn: str
) -> None:
    """It is the second one of this machine."""
    names, ran = ("t4", "v100-sxm2-16gb"), list[str]()

    def gpu(at: int, card: Accelerator | None) -> Gpu:
        assert card is not None
        node, facts = Node(2, card), {"cudnn": "91002"}
        return Gpu(f"cuda:{at}", "GPU-1", ("fp32",), 0, is_known=True, accelerator=card, node=node, circumstances=facts)

    def timed_runs(
        _network: Network, cells: Sequence[WantedRun], *_given: object, device: str, **_named: object
    ) -> Any:
        ran.append(device)
        return tuple(PlanRun(TimedStep(_network, cell.sub_batch, 1e-3)) for cell in cells)

    instruments["present_gpus"] = lambda known: tuple(gpu(at, known(name)) for at, name in enumerate(names))
    instruments["run_plans"] = timed_runs
    asked(base(find_accelerator(names[1]), cudnn=cudnn))
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    if cudnn == "91002":
        assert (code, ran) == (0, ["cuda:1"])
    else:
        assert (code, ran) == (5, [])
        assert "circumstance cudnn must be '90501', as in calibration mine, got '91002'" in err


def test_what_cannot_be_is_said(run: Run, asked: Callable[..., Path]) -> None:
    asked(base())
    for arguments, code, words in (
        (("--plan", "none.json"), 3, "none.json: file must be readable"),
        (
            ("--plan", "mine.json"),
            3,
            "mine.json: format: value must be 'planner/suggestion', got 'planner/cal",
        ),
        (("--plan", "plan.json", "--network", "mlp"), 2, "--network must be left out with --plan, which says what"),
        (
            ("--plan", "plan.json", "--samples", "x"),
            2,
            "--plan must be left out with --samples, which measures",
        ),
        (("--calibration", "mine.json"), 2, "--calibration must be given with --plan alone, got 'mine.json'"),
    ):
        found, out, err = run("calibrate", *arguments, "--out", "better.json")
        assert (found, out) == (code, "")
        assert words in err


def test_a_suggestion_without_plans_is_refused(run: Run, asked: Callable[..., Path]) -> None:
    asked(base(), "--sub-batch", "3", "--accumulation", "1", "--tolerance", "0")
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert code == 2
    assert "--plan must be a suggestion with plans, got 'plan.json'; loosen its request first" in err


def test_a_calibration_that_was_moved_is_named_by_its_new_file(
    run: Run, asked: Callable[..., Path], times: dict[int, float]
) -> None:
    asked(base())
    times |= dict.fromkeys(range(1, TARGET + 1), 1e-3)
    arguments = ("calibrate", "--plan", "plan.json", "--out", "better.json")
    assert run(*arguments[:3], "--out", "first.json")[0] == 0  # the request names its file
    Path("moved").mkdir()
    Path("mine.json").rename("moved/mine.json")
    code, _, err = run(*arguments)
    assert code == 2
    assert "of calibration 'mine.json', which the suggestion was made with, got nothing\n" in err
    assert run(*arguments, "--calibration", "moved/mine.json")[0] == 0


ELSEWHERE = "time their steps where they run and give them as a runs file by --runs FILE.csv\n"


def test_plans_that_split_the_network_are_not_run_on_one_device(
    asked: Callable[..., Path], run: Run, times: dict[int, float]
) -> None:
    path = asked(base())
    document = json.loads(path.read_text())
    times |= dict.fromkeys(range(1, TARGET + 1), 1e-3)
    document["plans"][0]["configuration"]["recompute"] = "full"
    path.write_text(json.dumps(document))
    arguments = ("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    code, _, err = run(*arguments)
    assert code == 0
    assert f"1 of 4 plans split the network, which no run on one device tells of; {ELSEWHERE}" in err
    split = document["plans"][0]["configuration"]["sub_batch"]
    measured = CALIBRATION.read("better.json").measured_steps
    assert {one.configuration.sub_batch for one in measured} == {1, 2, 4, 8} - {split}
    for plan in document["plans"]:
        plan["configuration"]["recompute"] = "full"
    path.write_text(json.dumps(document))
    code, _, err = run(*arguments, "--force")
    assert code == 5
    assert err == f"planner: --plan must be of plans that one device can run, got recompute full; {ELSEWHERE}"


def test_a_suggestion_for_another_framework_is_refused(asked: Callable[..., Path], run: Run) -> None:
    """Runs are PyTorch's: they tell nothing of Torch7, which computes the gradient of the network's input too."""
    asked(base(), "--framework", "torch7")
    code, _, err = run("calibrate", "--plan", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert code == 5
    assert "--plan must be of framework pytorch, which runs are made with, got torch7; suggest with --framework" in err


def verified(instruments: Instruments, ratios: dict[str, float], slower: float = 1.0) -> None:
    """Let a run take so many times what is expected of it, evenly over its parts."""

    def timed_runs(network: Network, cells: Sequence[WantedRun], *_given: Any, **_named: Any) -> tuple[PlanRun, ...]:
        (cell,) = cells
        parts = {name: Timing(ratio * cell.expected_s / 3, 0.0, 7) for name, ratio in ratios.items()}
        step = TimedStep(network, cell.sub_batch, parts["forward"].time_s + parts["backward"].time_s)
        return (PlanRun(step, slower, parts=parts),)

    instruments["run_plans"] = timed_runs


def test_a_plan_of_another_cluster_is_verified_on_this_device(run: Run, instruments: Instruments) -> None:
    Path("mine.json").write_text(CALIBRATION.dump(base()))
    words = ("--network", "mlp", "--cluster", "dgx-a100", "--sub-batch", "4", "--accumulation", "2", "--json")
    Path("plan.json").write_text(run("predict", *words)[1])
    verified(instruments, {"forward": 1.0, "backward": 3.0, "update": 2.0})
    given = ("verify", "plan.json", "--calibration", "mine.json", "--only-calibration")
    code, out, err = run(*given, "--json")
    document = VERIFICATION.build(json.loads(out), "stdout")
    here = ("--network", "mlp", "--sub-batch", "4", "--calibration", "mine.json", "--only-calibration", "--json")
    terms = {one["name"]: one["seconds"] for one in json.loads(run("predict", *here)[1])["terms"]}
    assert (code, document["device"], document["calibrations"]) == (0, CPU.name, ("mine",))
    assert document["ran"] == "the whole network"
    assert list(document["not_run"]) == ["messages between the 8 GPUs of the plan", "1 further micro-batch of a step"]
    whole_s = sum(terms[name] for name in ("forward", "backward", "update"))
    predicted = {one["name"]: one["predicted_s"] for one in document["terms"]}
    ratios = {one["name"]: one["ratio"] for one in document["terms"]}
    assert predicted == pytest.approx({**{name: terms[name] for name in predicted if name != "step"}, "step": whole_s})
    assert ratios["backward"] == pytest.approx(whole_s / terms["backward"])
    assert ratios["step"] == pytest.approx(2.0)
    assert "running mlp once for at most" in err
    code, out, err = run(*given)
    assert (code, "measured / predicted" in out, "--out FILE.json adds these steps" in err) == (0, True, True)
    code, _, err = run(*given, "--out", "better.json")
    (passes,) = CALIBRATION.read("better.json").measured_steps
    assert (code, passes.of, passes.configuration.sub_batch) == (0, "passes", 4)
    assert passes.factor == pytest.approx(4 / 3 * whole_s / (terms["forward"] + terms["backward"]))


def test_what_one_device_runs_of_a_split_plan_is_said(run: Run, instruments: Instruments) -> None:
    Path("mine.json").write_text(CALIBRATION.dump(base()))
    network = "gpt:layers=2,hidden=64,heads=4,sequence=16,vocabulary=64"
    words = ("--tensor", "2", "--pipeline", "2", "--framework", "megatron", "--optimizer", "adam-8bit", "--json")
    Path("plan.json").write_text(
        run("predict", "--network", network, "--cluster", "dgx-a100", "--sub-batch", "4", *words)[1]
    )
    verified(instruments, {"forward": 1.0, "backward": 2.0}, slower=1.5)
    code, out, err = run("verify", "plan.json", "--calibration", "mine.json", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["ran"] == "the part of one of 2 tensor-parallel ranks, with the layers of all 2 stages of the plan"
    assert document["not_run"] == [
        "messages between the 8 GPUs of the plan", "what the plan has besides: pipeline 2", "updates of adam-8bit",
        "kernels and switches of megatron-lm: this is plain PyTorch",
    ]  # fmt: skip
    assert "the machine was 1.5 times slower than in quiet: measured times are too long" in err
    code, _, err = run("verify", "plan.json", "--calibration", "mine.json", "--out", "better.json")
    assert (code, "--out must be left out for a tensor-parallel plan" in err) == (2, True)


def test_a_prediction_of_a_file_is_verified_by_the_option_that_named_it(run: Run, instruments: Instruments) -> None:
    Path("mine.json").write_text(CALIBRATION.dump(base()))
    Path("own.toml").write_text(run("show", "networks", "mlp", "--toml")[1].replace('name = "mlp"', 'name = "own"'))
    words = ("--network", "own.toml", "--cluster", "dgx-a100", "--sub-batch", "4", "--json")
    Path("plan.json").write_text(run("predict", *words)[1])
    verified(instruments, {"forward": 1.0, "backward": 3.0, "update": 2.0})
    code, out, err = run("verify", "plan.json", "--calibration", "mine.json", "--only-calibration")
    assert (code, "own on dgx-a100" in out) == (0, True), err


def test_what_cannot_be_verified_is_one_sentence(run: Run, instruments: Instruments) -> None:
    Path("mine.json").write_text(CALIBRATION.dump(base()))
    words = ("--network", "mlp", "--cluster", "dgx-a100", "--sub-batch")
    for size in ("4", "9000000"):
        Path(f"{size}.json").write_text(run("predict", *words, size, "--json")[1])
    Path("fp16.json").write_text(run("predict", *words, "4", "--precision", "fp16", "--json")[1])
    verify = ("verify", "4.json", "--calibration", "mine.json")
    instruments["run_plans"] = lambda *_, **__: (PlanRun(failed="no kernel"),)
    for arguments, code, said in (
        (("verify",), 2, "ANSWER.json must be given, got nothing; name a document of"),
        (("verify", "9000000.json", "--calibration", "mine.json"), 5, f"that {CPU.name} has free, got "),
        (
            ("verify", "fp16.json", "--calibration", "mine.json"),
            5,
            "; verify another plan by --position, or one of planner predict --precision fp32",
        ),
        ((*verify, "--position", "2"), 2, "--position must be one of the answer's (1), got 2"),
        ((*verify, "--device", "cuda"), 2, "--device must be a device that PyTorch sees"),
        (verify, 5, "in memory and on a quiet machine, got none (sub-batch 4 in fp32: no kernel)"),
    ):
        found, out, err = run(*arguments)
        assert (found, out) == (code, "")
        assert said in err
    instruments["run_plans"] = raised(KeyboardInterrupt())
    assert (run(*verify)[0], run(*verify)[2].endswith("planner: interrupted\n")) == (130, True)


def raised(error: BaseException) -> Callable[..., Any]:
    def fail(*_given: Any, **_named: Any) -> Any:
        raise error

    return fail
