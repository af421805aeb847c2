"""`poptorch.Options`: chained setters, attributes, frozen options, and their translation to popgeo."""

import copy

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.compat import poptorch
from popgeo.compat.account import ACCOUNT
from popgeo.compat.poptorch.popgeo_options import options_in_use, popgeo_options


@pytest.fixture(autouse=True)
def own_account():
    ACCOUNT.clear()
    yield
    ACCOUNT.clear()


def test_setters_chain_and_attributes_read_what_they_set():
    options = poptorch.Options()
    chained = options.deviceIterations(4).replicationFactor(2).outputMode(poptorch.OutputMode.EveryN, 2)
    assert chained is options
    options.Training.gradientAccumulation(8).accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    assert (options.device_iterations, options.replication_factor, options.output_return_period) == (4, 2, 2)
    assert options.Training.gradient_accumulation == options.Training("gradient_accumulation") == 8
    assert options.output_mode == poptorch.OutputMode.EveryN
    assert not options.defaultOutputMode()
    assert not options.exists("random_seed")
    with pytest.raises(AttributeError, match="Invalid attribute nothing"):
        _ = options.nothing


def test_options_say_what_they_are():
    text = repr(poptorch.Options().replicationFactor(4))
    assert text.startswith("Options(")
    assert "replication_factor=4" in text
    assert "gradient_accumulation=1" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o: o.deviceIterations(0), "deviceIterations is 0"),
        (lambda o: o.deviceIterations("4"), "deviceIterations is '4'"),
        (lambda o: o.set(nothing=1), "Invalid option nothing"),
        (lambda o: o.set(log_dir=3), "Unexpected type <class 'int'> for option log_dir"),
        (lambda o: o.outputMode(poptorch.OutputMode.EveryN), "output_return_period"),
        (lambda o: o.TensorLocations.numIOTiles(33), "numIOTiles must be an even number between 32 and 192."),
        (lambda o: o.setAvailableMemoryProportion({"0": 0.5}), "Invalid key: 0"),
        (lambda o: o.setExecutionStrategy("pipelined"), "execution strategy"),
        (lambda o: o.randomSeed("7"), "random seed"),
    ],
)
def test_a_wrong_value_is_refused_as_an_assertion_and_as_a_value(change, words):
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind, match=words):
            change(poptorch.Options())


def test_a_reduction_is_a_mean_or_a_sum():
    with pytest.raises(ValueError, match=r"poptorch\.ReductionType\.Mean or poptorch\.ReductionType\.Sum"):
        poptorch.Options().Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)
    with pytest.raises(ValueError, match=r"torch\.float or torch\.half"):
        poptorch.Options().Precision.setPartialsType(torch.int32)


def test_setters_are_listed_and_explained_and_take_their_arguments_by_name():
    options = poptorch.Options()
    for group in (options, options.Training, options.Precision, options.TensorLocations, options.Jit):
        setters = [getattr(group, name) for name in dir(type(group)) if hasattr(getattr(type(group), name), "becomes")]
        assert setters
        assert all(setter.__doc__ for setter in setters)
    assert options.useIpuModel(use_model=True).autoRoundNumIPUs().disableModuleNamescope() is options
    assert options.auto_round_num_ipus
    assert options.use_model
    for group, typo, right in (
        (options, "deviceIteration", "deviceIterations"),
        (options.Jit, "traceModl", "traceModel"),
    ):
        with pytest.raises(AttributeError, match=f"Invalid attribute {typo}. Did you mean '{right}'"):
            getattr(group, typo)
    with pytest.raises(TypeError, match="argument"):
        options.deviceIterations()


def test_options_in_use_do_not_change_and_copies_of_them_do():
    options = poptorch.Options().deviceIterations(2)
    executor = poptorch.inferenceModel(nn.ReLU(), options)
    for frozen in (options, executor.options):
        for change in (
            lambda o: o.deviceIterations(3),
            lambda o: o.Training.gradientAccumulation(2),
            lambda o: o._Popart.set("autoRecomputation", 3),
            lambda o: o.TensorLocations.numIOTiles(32),
            lambda o: o.set(log_dir="elsewhere"),
        ):
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                change(frozen)
    for other in (options.clone(), copy.deepcopy(executor.options)):
        other.deviceIterations(3).Training.gradientAccumulation(2)
        other._Popart.set("autoRecomputation", 3)
    assert options.device_iterations == 2


def test_a_copy_shares_nothing_with_its_original():
    options = poptorch.Options()
    options._Popart.set("key", 5)
    options.anchorTensor("one", "first")
    other = options.clone()
    options._Popart.set("key", 6)
    options.Precision.enableFloatingPointExceptions(True)
    options.anchorTensor("two", "second")
    assert other._Popart.options["key"] == 5
    assert list(other.anchored_tensors) == ["one"]
    assert "enableFloatingPointChecks" not in other._Popart.options
    other.Precision.enableFloatingPointExceptions(True)  # the copy's groups share the copy's PopART settings
    assert other._Popart.options["enableFloatingPointChecks"]


def test_the_executor_picks_an_output_mode_that_the_caller_does_not_see():
    options = poptorch.Options()
    training = poptorch.trainingModel(nn.Linear(2, 2), options)
    inference = poptorch.inferenceModel(nn.ReLU(), options)
    assert options.defaultOutputMode()
    assert training.options.output_mode == poptorch.OutputMode.Final
    assert inference.options.output_mode == poptorch.OutputMode.All
    with pytest.raises(AssertionError, match="An output mode must be picked"):
        options.toDict()
    assert inference.options.toDict()["gradient_accumulation"] == 1


def test_a_file_sets_options_and_runs_nothing_else(tmp_path):
    path = tmp_path / "run.conf"
    path.write_text(
        "# comment\n\n  deviceIterations(4)  # four\nTraining.gradientAccumulation(2)\n"
        "outputMode(poptorch.OutputMode.EveryN, 2)\nsetAvailableMemoryProportion({'IPU0': 0.5})\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))\n"
    )
    options = poptorch.Options().replicationFactor(3).loadFromFile(str(path))
    assert (options.device_iterations, options.Training.gradient_accumulation, options.replication_factor) == (4, 2, 3)
    assert options.available_memory_proportion == {0: 0.5}
    assert options.TensorLocations.location_weight == {"onChip": 0}

    path.write_text("deviceIterations(2)\nreplicationFactor(2")
    with pytest.raises(poptorch.ConfigFileError, match=r"SyntaxError at line 2 of run.conf.*(\n|.)*> options.repl"):
        options.loadFromFile(str(path))
    assert options.device_iterations == 4
    strange = ("deviceIterations(__import__('os').getpid())", "__class__", "logDir(poptorch.load('file'))", "a = 1")
    for line in (
        *strange,
        "logDir([one for one in 'ab'])",
        "logDir(f'{1}')",
        "logDir((lambda: 'a')())",
        "logDir('ab'[0])",
    ):
        path.write_text(line)
        with pytest.raises(poptorch.ConfigFileError, match=r"[lL]ine 1 of run\.conf"):
            poptorch.Options().loadFromFile(str(path))


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "steps")
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS",
        '{"deviceIterations": 2, "connectionType": "ConnectionType.OnDemand", "_Popart.set": ["file", "my.onnx"], '
        '"Precision.enableFloatingPointExceptions": true}',
    )
    options = poptorch.Options()
    assert options.device_iterations == 2
    assert options.connection_type == poptorch.ConnectionType.OnDemand
    assert options._Popart.options["file"] == "my.onnx"
    chosen = popgeo_options(options_in_use(options, False, None), None)
    assert chosen.floating_point_exceptions
    assert chosen.cache_dir == "steps"
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIteration": 2}')
    with pytest.raises(ValueError, match="'deviceIteration', which is not a setter"):
        poptorch.Options()


def test_options_mean_to_popgeo_what_they_mean_to_poptorch():
    options = poptorch.Options().deviceIterations(4).replicationFactor(2).randomSeed(7)
    options.Training.gradientAccumulation(3).accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    options.outputMode(poptorch.OutputMode.EveryN, 6).enableExecutableCaching("steps").useOfflineIpuTarget(1)
    options.TensorLocations.numIOTiles(32)
    options.showCompilationProgressBar(False)
    assert popgeo_options(options_in_use(options, True, None), None) == ipu.Options(
        device_iterations=4,
        replication_factor=2,
        gradient_accumulation=3,
        reduction="sum",
        output_mode="every_n",
        output_period=6,
        random_seed=7,
        cache_dir="steps",
        show_progress=False,
        strict=False,
        target=ipu.IpuTarget(**{**vars(ipu.IpuTarget.gc2()), "num_tiles": 1216 - 32}),
    )


def test_the_seed_is_torchs_own_too():
    poptorch.Options().randomSeed(11)
    assert torch.initial_seed() == 11


def test_processes_are_numbered_by_the_environment(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = poptorch.Options().Distributed
    assert (distributed.processId, distributed.numProcesses) == (3, 4)
    assert distributed.disable().numProcesses == 1


def test_everything_asked_for_stands_in_the_account_once():
    options = poptorch.Options().deviceIterations(2).deviceIterations(4).useIpuId(1).logCycleCount(True)
    options._Popart.set("autoRecomputation", 3)
    table = poptorch.compat_report()
    assert dict(zip(table["asked"], table["became"], strict=True)) == {
        "Options.deviceIterations": "honoured",
        "Options.useIpuId": "ignored",
        "Options.logCycleCount": "recorded",
        "Options._Popart.set('autoRecomputation')": "ignored",
    }


def test_names_of_older_releases_work():
    options = poptorch.Options().anchorMode(poptorch.AnchorMode.All)
    options.Popart.set("enableOutlining", True)
    options.Training.accumulationReductionType(poptorch.ReductionType.Sum)
    options.GraphProcessing.runningVarianceAlwaysFloat(True)
    assert options.output_mode == poptorch.OutputMode.All
    assert options.Training.accumulation_and_replication_reduction_type == poptorch.ReductionType.Sum


@pytest.mark.parametrize(
    ("accum_type", "combined", "expected"),
    [(torch.float16, False, "Running"), (torch.float16, True, "Post"), (torch.float32, False, "Post")],
)
def test_gradients_that_are_joined_in_float16_are_divided_as_they_come(accum_type, combined, expected):
    weights = nn.Linear(1, 1).parameters()
    optimizer = poptorch.optim.SGD(weights, lr=0.1, accum_type=accum_type, use_combined_accum=combined)
    name = "meanAccumulationAndReplicationReductionStrategy"
    assert getattr(options_in_use(None, True, optimizer).Training, name).name == expected
    chosen = poptorch.Options()
    chosen.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Post)
    assert getattr(options_in_use(chosen, True, optimizer).Training, name).name == expected


def test_memory_proportions_reach_the_modelled_machine_by_ipu():
    options = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.25, "IPU2": 0.1})
    chosen = popgeo_options(options_in_use(options, True, None), None)
    assert [chosen.proportion_of(ipu_id) for ipu_id in range(4)] == [0.25, 0.6, 0.1, 0.6]
    with pytest.raises(ValueError, match="0 to 1"):
        poptorch.Options().setAvailableMemoryProportion({"IPU0": 2.5})


def test_sharded_optimizer_state_reaches_the_modelled_replicas_and_the_account():
    options = poptorch.Options().replicationFactor(4)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location).setWeightLocation(location)
    weight = nn.Parameter(torch.ones(8))
    for kind, divided in ((poptorch.optim.AdamW, True), (poptorch.optim.LAMB, False)):
        optimizer = kind([weight], lr=0.1)
        assert popgeo_options(options_in_use(options, True, optimizer), optimizer).shard_optimizer_state is divided
    became = {asked: treatment.value for asked, (treatment, _) in ACCOUNT.items()}
    assert became["Options.TensorLocations.setOptimizerLocation(useReplicatedTensorSharding)"] == "recorded"
    assert became["Options.TensorLocations.setOptimizerLocation with LAMB"] == "ignored"
    assert became["Options.TensorLocations.setWeightLocation"] == "ignored"
