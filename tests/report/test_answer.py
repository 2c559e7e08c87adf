from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Staleness
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.report.answer import prediction_answer, predictions_answer, suggestion_answer, suggestions_overview
from planner.report.blocks import Block, Table

Printed = Callable[[Iterable[Block]], str]


def test_a_suggestion_is_a_sentence_a_table_its_terms_and_what_comes_next(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    lines = printed(suggestion_answer(suggestion, subject)).splitlines()
    assert lines[:5] == [
        "warning: made from the figures that it is compared with",
        "sprint-15 on tsubame-kfc, target mini-batch 138: take plan 2, 8 nodes x 8 GPUs,",
        "sub-batch 8, fp32, asynchronous: an epoch in 29.7 min (27.5 to 32.0 min).",
        "Plans 1 and 2 are tied; plan 2 has the fewest GPUs. Plan 1 has the best",
        "prediction of all 440.",
    ]
    assert lines[5] == ""
    assert [line.split()[:4] for line in lines[8:10]] == [["1", "12", "x", "8"], ["2", "8", "x", "8"]]
    assert lines[10:13] == [
        "* outside what was measured",
        "GPU thread 735 ms: load input 28%, forward 24%, update gradient 3%",
        "Update thread 229.3 ms: all-reduce 69%, sum gradient 31%",
    ]
    at = lines.index("Pareto front of epoch time, GPUs and distance from the target")
    assert " ".join(lines[at + 6 : at + 8]) == (
        "90% interval: a factor of 1.1 either way, from a reconstruction of published "
        "results. To narrow it: `planner calibrate --network sprint-15`"
    )
    assert lines[-1] == "Start: mpirun -np 8 --map-by node PROGRAM  # 8 threads, sub-batch 8, fp32"


def test_a_chosen_plan_behind_the_short_table_stands_last(
    suggestion: Suggestion, prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    plans = tuple(Plan(at, prediction, "") for at in (1, 2, 3, 4, 5, 6, 17))
    many = replace(suggestion, plans=plans, chosen=17, pareto=())

    def numbers(one: Suggestion) -> list[str]:
        lines = printed(suggestion_answer(one, subject)).splitlines()
        return [line.split()[0] for line in lines if " 8 x 8 " in line]

    assert numbers(many) == ["1", "2", "3", "4", "17"]
    assert numbers(replace(many, chosen=2)) == ["1", "2", "3", "4", "5"]
    asked = many.request | {"top": Sourced(3, "option")}  # type: ignore[operator]  # a frozen mapping
    assert numbers(replace(many, request=asked)) == ["1", "2", "17"]


def test_switches_that_pay_are_told_beside_ties_where_the_screen_has_room(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    paying = replace(suggestion, switches={"graphs": 1.02, "channels-last": 1.413}, pareto=(), deciding=(1, 2))

    def text(one: Suggestion, *, in_full: bool = False) -> str:
        return " ".join(printed(suggestion_answer(one, subject, in_full=in_full)).split())

    said = "Faster by a switch: channels-last 1.4 times, graphs 1.02 times."
    assert said in text(paying)
    many = replace(paying, switches={f"a-switch-of-a-long-name-{at}": 1.5 for at in range(40)})
    assert "Faster by a switch" not in text(many)
    assert "Faster by a switch" in text(many, in_full=True)


def test_the_best_of_other_frameworks_are_one_line(suggestion: Suggestion, subject: Subject, printed: Printed) -> None:
    own = subject.settings.framework.label
    others = {f"a-framework-called-{at}": 1 + at / 50 for at in range(1, 9)} | {"x:" + "+".join("abcdefgh" * 9): 1.001}

    def told(frameworks: dict[str, float]) -> list[str]:
        one = replace(suggestion, frameworks=frameworks, plans=suggestion.plans[:2])
        return [line for line in printed(suggestion_answer(one, subject)).splitlines() if "Best of others" in line]

    assert told({own: 1.0, **others}) == ["Best of others, times as long: a-framework-called-1 1.02; 8 more"]
    assert told({own: 1.0, "fsdp": 2.345, "mxnet": 1.5}) == ["Best of others, times as long: mxnet 1.5, fsdp 2.3"]
    assert told({own: 1.0}) == []


def test_without_a_proof_it_says_so(suggestion: Suggestion, subject: Subject, printed: Printed) -> None:
    alone = replace(suggestion, tied=(1,), choice="no other plan is tied with it")
    said = "Plan 1 has the best prediction of all 440; no other plan is tied with it."
    assert said in printed(suggestion_answer(alone, subject))
    tried = replace(alone, search=replace(suggestion.search, certified=False))
    only = replace(alone, search=replace(suggestion.search, evaluated=1))
    assert "\nIt is the only plan that fits.\n" in printed(suggestion_answer(only, subject))
    assert "best prediction of the 440 tried; no other" in printed(suggestion_answer(tried, subject))


def test_an_answer_of_trials_says_how_many_there_were(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    def said(*, certified: bool, tied: tuple[int, ...]) -> str:
        search = replace(suggestion.search, certified=certified, trials=600)
        choice = suggestion.choice if len(tied) > 1 else "no other plan is tied with it"
        one = replace(suggestion, search=search, tied=tied, choice=choice)
        return " ".join(printed(suggestion_answer(one, subject)).split())

    proven = said(certified=True, tied=(1,))
    assert "Plan 1 has the best prediction of the whole space, 440 tried by Optuna. Among" in proven
    assert "Among the plans tried, no other plan is tied with it." in proven
    tried = said(certified=False, tied=(1, 2))
    assert "Among the plans tried, plans 1 and 2 are tied; plan 2 has the fewest GPUs." in tried
    assert "best prediction of the 440 tried by Optuna; a better one may exist." in tried


def test_a_plan_of_the_front_has_its_number_in_the_ranking_and_others_have_none(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    *_, last = suggestion.plans
    one = last.prediction.configuration
    other = replace(last.prediction, configuration=replace(one, nodes=one.nodes + 9))
    front = (Plan(1, other, ""), replace(last, position=2))
    text = printed(suggestion_answer(replace(suggestion, pareto=front), subject)).partition("Pareto front")[2]
    rows = [
        line.partition(f"{nodes} x")[0].strip()
        for nodes in (one.nodes + 9, one.nodes)
        for line in text.splitlines()
        if f"{nodes} x" in line
    ]
    assert last.position > 1
    assert rows == ["", str(last.position)]


@pytest.mark.parametrize("size", [3, 50, 73])
def test_a_pareto_front_has_at_most_50_rows(
    size: int, suggestion: Suggestion, prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    front = tuple(Plan(at, prediction, "") for at in range(1, size + 1))
    of_front = replace(suggestion, pareto=front)
    text = printed(suggestion_answer(of_front, subject, in_full=True)).partition("Pareto front")[2]
    assert sum(" 8 x 8 " in f" {line} " for line in text.splitlines()) == min(size, 50)
    assert ("\nand 23 more\n" in text) == (size == 73)
    counted = replace(suggestion, pareto=front[:50], pareto_more=1621)
    assert "\nand 1,621 more\n" in printed(suggestion_answer(counted, subject, in_full=True))


@pytest.mark.parametrize("size", [1, 3, 9, 50])
def test_a_short_answer_has_as_much_of_the_front_as_its_lines_hold_and_counts_the_rest(
    size: int, suggestion: Suggestion, prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    front = tuple(Plan(at, prediction, "") for at in range(1, size + 1))
    of_front = replace(suggestion, pareto=front, pareto_more=0 if size < 50 else 1621)
    lines = printed(suggestion_answer(of_front, subject)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("Pareto front"))
    rows = sum(" 8 x 8 " in f" {line} " for line in lines[at:])
    assert len(lines) <= 25
    assert lines[at].endswith(f": {rows} of {size + of_front.pareto_more:,}") == (rows < size)


def test_constraints_that_contradict_each_other_are_named(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    nothing = replace(suggestion, status="none_feasible", plans=(), chosen=None, pareto=())

    def said(*texts: str) -> str:
        return " ".join(printed(suggestion_answer(replace(nothing, conflict=texts), subject)).split())

    assert "No plan here meets" not in said()
    assert "No plan here meets --nodes 4, even with all other options left out." in said("--nodes 4")
    both = "together, even with all other options left out; without any one of these some plan does."
    assert f"No plan here meets --nodes 3 and --tensor 16 {both}" in said("--nodes 3", "--tensor 16")
    assert "meets --nodes 3, --tensor 16 and --limit epoch=1s together" in said(
        "--nodes 3", "--tensor 16", "--limit epoch=1s"
    )


def test_the_front_is_of_the_cost_where_that_was_asked_for(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    asked = suggestion.request | {"objective": Sourced("cost", "option")}  # type: ignore[operator]  # as above
    text = printed(suggestion_answer(replace(suggestion, request=asked), replace(subject, usd_per_gpu_hour=2.0)))
    assert "Pareto front of cost, GPUs and distance from the target" in text
    assert "USD" in text


def test_when_nothing_fits_the_nearest_and_a_way_out_are_shown(
    nothing_fits: Suggestion, subject: Subject, printed: Printed
) -> None:
    lines = printed(suggestion_answer(nothing_fits, subject)).splitlines()
    assert lines[1:3] == ["sprint-15 on tsubame-kfc, target mini-batch 138: no plan fits.", "Nearest plans:"]
    assert lines[-2:] == [
        "What to loosen, the smallest change first:",
        "  --tolerance 3.1% (now 0%) allows 8 nodes x 8 GPUs",
    ]
    assert not [line for line in lines if "Start" in line or "Good to" in line]


def test_a_prediction_is_a_sentence_figures_terms_and_what_comes_next(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    lines = printed(prediction_answer(prediction, replace(subject, usd_per_gpu_hour=1.5))).splitlines()
    assert lines == [
        "warning: made from the figures that it is compared with",
        "sprint-15 on tsubame-kfc, 8 nodes x 8 GPUs, sub-batch 8, fp32, asynchronous: an",
        "epoch in 29.7 min (27.5 to 32.0 min).",
        "speed           720 samples/s, 11.3 per GPU",
        "mini-batch      165 ± 12 samples, staleness 1.3 updates",
        "an epoch takes  31.6 GPU-hours, 47.4 USD",
        "memory          1.125 GiB of 12 GiB on one GPU",
        "thread  term               takes     adds  share  origin",
        "GPU     load input        210 ms   210 ms  28.0%  reconstructed",
        "GPU     forward           175 ms   175 ms  24.0%  reconstructed",
        "GPU     update gradient  20.0 ms  20.0 ms   3.0%  specified      *",
        "update  sum gradient     57.1 ms  57.1 ms  31.0%  reconstructed",
        "update  all-reduce       87.6 ms  87.6 ms  69.0%  reconstructed",
        "* outside what was measured",
        "90% interval: a factor of 1.1 either way, from a reconstruction of published",
        "results. To narrow it: `planner calibrate --network sprint-15`",
        "Start: mpirun -np 8 --map-by node PROGRAM  # 8 threads, sub-batch 8, fp32",
    ]


def test_a_synchronous_prediction_has_no_distributions(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    sync = replace(
        prediction,
        configuration=Configuration(1, 1, 8, 4, "fp16"),
        mini_batch=MiniBatch(32, 0, 32, 32),
        staleness=Staleness(0, 0, {0: 1.0}),
    )
    text = printed(prediction_answer(sync, subject))
    assert "1 node x 1 GPU, sub-batch 8, accumulation 4, fp16, synchronous" in " ".join(text.split())
    assert "mini-batch      32 samples\n" in text
    assert "per GPU" not in text
    assert not [word for word in ("±", "staleness", "USD") if word in text]


def test_without_a_data_set_the_speed_is_the_answer(
    without_dataset: Prediction, subject: Subject, printed: Printed
) -> None:
    words = " ".join(printed(prediction_answer(without_dataset, subject)).split())
    assert "asynchronous: 720 samples/s (667 to 776)." in words
    assert "hours" not in words


def test_answers_about_a_cpu_name_no_gpu(prediction: Prediction, suggestion: Suggestion, printed: Printed) -> None:
    on_cpu = Subject("net", "local", device="CPU")
    large = replace(prediction, memory_bytes={"total": 13 * 2.0**30, "capacity": 12 * 2.0**30})
    alone = replace(suggestion, choice="no other plan is tied with it", tied=(1,))
    for view in (
        prediction_answer(large, on_cpu),
        predictions_answer([(on_cpu, large), (on_cpu, prediction)]),
        suggestion_answer(alone, on_cpu),
        suggestions_overview([(on_cpu, alone), (replace(on_cpu, scenario="fp16"), alone)]),
    ):
        text = printed(view)
        assert "CPU" in text
        assert "gpu" not in text.lower()


def test_many_predictions_are_one_table_as_good_as_the_least_sure(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    unsure = replace(prediction, iteration_s=Quantity(1.0, 0.25, 4.0, "covariance"))
    lines = printed(predictions_answer([(subject, prediction), (subject, unsure), (subject, prediction)])).splitlines()
    assert lines[1] == "sprint-15 on tsubame-kfc: 3 predictions"
    assert [line.split()[0] for line in lines[4:7]] == ["1", "2", "3"]
    assert lines[8].startswith("90% interval: a factor of 4.0 either way")


def test_several_answers_are_told_apart(
    suggestion: Suggestion, nothing_fits: Suggestion, subject: Subject, printed: Printed
) -> None:
    answers = [
        (subject, suggestion),
        (replace(subject, scenario="edr"), nothing_fits),
        (replace(subject, network="vgg16"), suggestion),
    ]
    lines = [line for line in printed(suggestions_overview(answers)).splitlines() if not line.startswith("warning: ")]
    assert lines[0] == "2 networks on tsubame-kfc, target mini-batch 138: the plans to take"
    rows = [" ".join(line.split()) for line in lines]
    assert any(row.startswith("1 sprint-15 8 x 8 8 fp32") for row in rows)
    assert any(row.startswith("2 vgg16 8 x 8 8 fp32") for row in rows)
    text = " ".join(lines)
    assert "sprint-15 on tsubame-kfc, scenario edr: no plan fits; the smallest change that helps: --tolerance" in text


def test_several_answers_of_which_none_fits_have_no_table(
    nothing_fits: Suggestion, subject: Subject, printed: Printed
) -> None:
    answers = [(subject, nothing_fits), (replace(subject, scenario="edr"), nothing_fits)]
    text = " ".join(printed(suggestions_overview(answers)).split())
    assert (
        "sprint-15 on tsubame-kfc, target mini-batch 138: no plan fits sprint-15 on tsubame-kfc: no plan fits; " in text
    )
    assert "sprint-15 on tsubame-kfc, scenario edr: no plan fits; the smallest change that helps: --tolerance" in text
    assert "epoch" not in text


@pytest.mark.parametrize("usd_per_gpu_hour", [None, 123.0])
def test_nothing_is_wider_than_80_columns_or_longer_than_25_lines(
    usd_per_gpu_hour: float | None, prediction: Prediction, suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    epoch = Quantity(7446700.0, 71000.0, 78000000.0, "covariance")
    codes = ("out_of_memory", "specified", "new", "no_dataset")
    warnings = tuple(PlanWarning(code, f"some-accelerator-{at}", "why " * 40) for at in range(9) for code in codes)
    wide = replace(
        prediction, configuration=Configuration(1408, 16, 1024, 64, "bf16"), epoch_s=epoch, warnings=warnings
    )
    plans = tuple(Plan(at, wide, "", ("bf16", "fp16"), 0.5, 0.5) for at in range(1, 6))
    long = replace(suggestion, plans=plans, pareto=(), baseline=wide.configuration)
    priced = replace(subject, usd_per_gpu_hour=usd_per_gpu_hour, network="network-of-a-long-name")
    for view in (
        prediction_answer(wide, priced),
        predictions_answer([(priced, wide)] * 10),
        suggestion_answer(long, priced),
        suggestions_overview([(priced, long), (replace(priced, scenario="inter_node.bandwidth=12.5GB/s"), long)]),
    ):
        text = printed(view)
        assert max(map(len, text.splitlines())) <= 80
        assert len(text.splitlines()) <= 25
        assert "…" not in text


def test_epochs_and_the_cost_that_is_minimised_stand_in_the_first_sentence(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    def first(one: Suggestion, of: Subject = subject, epochs: int | None = None) -> str:
        request: dict[str, Sourced[object]] = dict(one.request)
        request |= {} if epochs is None else {"epochs": Sourced(epochs, "option")}
        return " ".join(printed(suggestion_answer(replace(one, request=request), of)).partition(".\n")[0].split())

    assert "epochs in" not in first(suggestion)
    assert ", 90 epochs in " in first(suggestion, epochs=90)
    assert "1 epoch" not in first(suggestion, epochs=1)  # the same time again
    priced = replace(subject, usd_per_gpu_hour=2.0)
    assert "USD" not in first(suggestion, priced)
    cheapest = replace(suggestion, request=suggestion.request | {"objective": Sourced("cost", "option")})  # type: ignore[operator]  # a frozen mapping
    assert " USD" in first(cheapest, priced)


def test_the_memory_stays_where_short_headings_make_room_and_goes_last() -> None:
    wide = {"nodes\nx GPUs": "8 x 8", "accu-\nmulate": "128", "re-\ncompute": "none", "words": "bf16 / fp16"}
    columns = wide | {"stale-\nness": "1.2", "memory\nGiB": "79.0"}
    dropped = ("stale-\nness", "memory\nGiB")
    table = Table(list(columns), [list(columns.values())], ["memory\nGiB"], 1, fixed=True, dropped=dropped)
    for width, names in {
        47: list(columns),
        40: [name for name in columns if name != "stale-\nness"],
        31: ["nodes\nx GPUs", "acc.", "re-\ncomp", "words", "mem.\nGiB"],
        26: ["nodes\nx GPUs", "acc.", "re-\ncomp", "words"],
    }.items():
        assert list(table.within(width).columns) == names
