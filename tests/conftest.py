"""What all tests share: layers, compiled programs, and that no test sees traces of another."""

import os
from collections.abc import Iterator
from pathlib import Path

# Many tests compile the same programs. Kept here, they are compiled once for all processes and all
# later runs. (In the environment, before JAX is imported, so that commands under test have it too.)
_COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import jax  # noqa: E402
import pytest  # noqa: E402
from jax._src import compiler  # noqa: E402  # there is no public way to set options for all programs

from tacit.estimators.inputs import forget_fits  # noqa: E402
from tacit.inference.compilation import forget_kernels  # noqa: E402

# `make check`: files whose tests take two minutes together on one core.
_QUICK = (
    "tests/audit/test_one_run.py",
    "tests/audit/test_trials.py",
    "tests/certify/test_smoothing.py",
    "tests/cli/test_calibrate_command.py",
    "tests/cli/test_epsilon_command.py",
    "tests/cli/test_evaluate_command.py",
    "tests/cli/test_help.py",
    "tests/cli/test_launch_command.py",
    "tests/cli/test_ledger_command.py",
    "tests/cli/test_predict_command.py",
    "tests/cli/test_schema_command.py",
    "tests/data/",
    "tests/estimators/test_fitting.py",
    "tests/estimators/test_scaler.py",
    "tests/inference/test_checkpoint.py",
    "tests/inference/test_clip_norm.py",
    "tests/inference/test_ivon.py",
    "tests/inference/test_plan.py",
    "tests/inference/test_repeats.py",
    "tests/metrics/",
    "tests/models/programs/test_arguments.py",
    "tests/models/test_likelihoods.py",
    "tests/models/test_priors.py",
    "tests/privacy/test_bisection.py",
    "tests/privacy/test_budget.py",
    "tests/privacy/test_calibrate.py",
    "tests/privacy/test_filters.py",
    "tests/privacy/test_fingerprint.py",
    "tests/privacy/test_isolation.py",
    "tests/privacy/test_ledger.py",
    "tests/privacy/test_ledger_damage.py",
    "tests/privacy/test_private_bounds.py",
    "tests/privacy/test_stopping.py",
    "tests/recalibration/",
    "tests/robust/test_attacks.py",
    "tests/robust/test_balls.py",
    "tests/test_architecture.py",
    "tests/test_chosen_settings.py",
    "tests/test_compiling.py",
    "tests/test_display.py",
    "tests/test_experiments.py",
    "tests/test_front_end_experiment.py",
    "tests/test_loading.py",
    "tests/test_straightening.py",
    "tests/test_zhang_experiments.py",
)

# `make test-all`: they fit models to convergence, fuzz for long, start processes, run whole
# documents, or repeat with another model what a quicker test shows with one. (Single parameters say
# so themselves, by `pytest.mark.slow`.)
_SLOW = (
    "src/",
    "tests/audit/test_audit_command.py::test_a_run_is_audited_with_its_own_settings",
    "tests/audit/test_audit_command.py::test_models_of_a_runs_own_table",
    "tests/audit/test_runs.py",
    "tests/certify/test_predictive.py::test_averaging_the_softmax",
    "tests/certify/test_predictive.py::test_no_attack_changes_a_certified_prediction[L2]",
    "tests/cli/test_bad_input.py::test_no_table_makes_predictions",
    "tests/cli/test_demo_command.py",
    "tests/cli/test_fit_by_processes.py",
    "tests/estimators/test_checks.py",
    "tests/estimators/test_tuning.py",
    "tests/estimators/test_tutorial.py",
    "tests/inference/test_fit.py::test_low_precision_parameters",
    "tests/inference/test_fit.py::test_sizes_may_be_integers",
    "tests/inference/test_sghmc.py::test_with_all_momentum_lost",
    "tests/inference/test_sgld.py::test_theorem_1",
    "tests/inference/test_vi.py::test_a_layer_as_wide_as_the_table",
    "tests/inference/test_vi.py::test_a_step_clips_what_it_asks_for_and_adds_the_divergence_over_n[low",
    "tests/inference/test_vi.py::test_with_one_shared_draw_no_kernel_of_a_record_is_ever_formed[LowRank]",
    "tests/inference/test_warm.py::test_a_rehearsal",
    "tests/inference/test_warm.py::test_paths_are",
    "tests/models/programs/test_alignment.py::test_the_guides_gradient_follows_from_that_at_the_shared_draw[auto",
    "tests/models/programs/test_as_model.py::test_prior_and_likelihoods_add_up",
    "tests/models/programs/test_splitting.py::test_records_with_latents",
    "tests/models/programs/test_splitting.py::test_start_objective_and_gradient",
    "tests/models/test_adapters.py::test_an_adapted_network_is_mapped",
    "tests/models/test_bayesian.py::test_a_model_is_mapped",
    "tests/models/test_front_end.py",
    "tests/models/test_intervals.py::test_no_point_of_a_box",
    "tests/models/test_linear_bounds.py::test_an_activation_stays",
    "tests/models/test_linear_bounds.py::test_linear_bounds_lie_within",
    "tests/models/test_linear_bounds.py::test_no_point_of_a_box",
    "tests/models/test_linear_bounds.py::test_no_point_of_a_euclidean_ball",
    "tests/models/test_linear_bounds.py::test_on_a_small_relu_network",
    "tests/models/test_linear_bounds.py::test_the_specification_bounds_a_difference",
    "tests/models/test_scattering.py",
    "tests/models/test_whitening.py",
    "tests/native/test_native.py::test_a_seeded_fit_is_the_same",
    "tests/native/test_native.py::test_releases_are_those_of_jax",
    "tests/numpyro/test_dpsvi.py::test_private_losses_are_near",
    "tests/numpyro/test_parity.py",
    "tests/numpyro/test_program_posterior.py",
    "tests/numpyro/test_synthetic.py",
    "tests/numpyro/test_traps.py::test_padding_rows_change_nothing",
    "tests/numpyro/test_traps.py::test_subsampling_inside_a_model",
    "tests/numpyro/test_traps.py::test_trees_numbers_and_none",
    "tests/numpyro/test_twin.py",
    "tests/privacy/test_conditioned.py::test_a_person_with_several_rows",
    "tests/privacy/test_conditioned.py::test_a_statement_of_a_conditioned_batch_is_confirmed",
    "tests/privacy/test_conditioned.py::test_what_vacant_rows_save",
    "tests/privacy/test_declared_records.py::test_dpsvi_says_and_computes",
    "tests/privacy/test_fast_clipping.py::test_any_chain_of_maps",
    "tests/privacy/test_ledger_processes.py",
    "tests/privacy/test_sensitivity.py::test_nor_one_on_a_table_on_the_host",
    "tests/privacy/test_sensitivity.py::test_the_order_of_a_full_batch",
    "tests/privacy/test_statement.py::test_no_nonsense_in_a_field",
    "tests/report/test_report.py::test_a_document_that_is_not",
    "tests/robust/test_schedules.py",
    "tests/robust/test_training.py::test_robust_training_withstands",
    "tests/scale/",
    "tests/statistics/",
    "tests/tables/test_compiling.py",
    "tests/tables/test_reading_ahead.py::test_a_method_that_draws_inside_of_a_loop",
    "tests/tables/test_reading_ahead.py::test_chunks_are_read_while",
    "tests/tables/test_reading_ahead.py::test_chunks_are_so_short",
    "tests/tables/test_shards.py",
    "tests/test_architecture.py::test_the_way_of_a_record",
    "tests/test_benchmarks.py",
    "tests/test_docs.py::test_every_python_block",
    "tests/test_example_programs.py",
    "tests/test_examples.py",
    "tests/test_kept_programs.py",
    "tests/test_posterior.py::test_dropout_predictions_average",
    "tests/test_posterior_memory.py::test_a_step_is_measured",
    "tests/test_processes.py",
    "tests/test_robust_experiments.py",
    "tests/test_thesis_chains.py",
    "tests/test_tutorials.py",
)

# One statistical test for each family of methods is in `make test` all the same.
_SAMPLES = (
    "tests/statistics/test_hmc_posteriors.py::test_with_noisy_gradients",
    "tests/statistics/test_sghmc_posteriors.py::test_the_chain_finds_mean_and_variance",
    "tests/statistics/test_sgld_posteriors.py::test_private_full_batch_sgld",
    "tests/statistics/test_vi_posteriors.py::test_ivon_has_the_exact",
    "tests/statistics/test_vi_posteriors.py::test_mean_field_vi_has_the_exact",
)

# Compiled with most of LLVM's optimisations off, in less than half the time, unless they are slow:
# tests of which releases are made and counted, of algebra within a tolerance, of what is refused,
# written, said. What looks at bits, rounding, bounds or the generator, every statistical test and
# everything in `make test-all` is compiled as it is for users.
_UNOPTIMISED = (
    "tests/cli/",
    "tests/estimators/",
    "tests/inference/",
    "tests/laws/test_laws.py::test_cost_equals",
    "tests/laws/test_laws.py::test_without_the_engine",
    "tests/metrics/",
    "tests/models/programs/",
    "tests/models/test_adapters.py",
    "tests/models/test_bayesian.py",
    "tests/models/test_layers.py",
    "tests/models/test_likelihoods.py",
    "tests/models/test_networks.py",
    "tests/models/test_priors.py",
    "tests/numpyro/",
    "tests/privacy/test_declared_records.py",
    "tests/privacy/test_explain.py",
    "tests/privacy/test_fast_clipping.py::test_a_loss_",
    "tests/privacy/test_fast_clipping.py::test_a_wrong_rule",
    "tests/privacy/test_fast_clipping.py::test_an_empty_batch",
    "tests/privacy/test_fast_clipping.py::test_every_clipping_rule",
    "tests/privacy/test_fast_clipping.py::test_explain_says",
    "tests/privacy/test_fast_clipping.py::test_keys_of_other",
    "tests/privacy/test_fast_clipping.py::test_no_per_record",
    "tests/privacy/test_fast_clipping.py::test_our_own_network",
    "tests/privacy/test_fast_clipping.py::test_padding_and_chunks",
    "tests/privacy/test_fast_clipping.py::test_robust_losses",
    "tests/privacy/test_fast_clipping.py::test_the_fast_way_equals_the_reference",
    "tests/privacy/test_fast_clipping.py::test_weakly_typed",
    "tests/privacy/test_fast_clipping.py::test_without_a_clip",
    "tests/privacy/test_private_bounds.py",
    "tests/recalibration/",
    "tests/report/",
    "tests/robust/",
    "tests/test_docs.py::test_the_skeleton",
    "tests/test_pitfalls.py",
    "tests/test_posterior.py",
    "tests/test_samplers.py",
)
_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
_MOST_MEMORY = 3 * 2**30
_CHANGING = {"monkeypatch", "clip_unverified"}  # fixtures that change what is compiled
_changed: set[Path] = set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import, for ``make check``, what it would not run."""
    if config.option.markexpr != "quick" or collection_path.suffix != ".py":
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if name.startswith(_QUICK) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the layers: ``quick`` for ``make check``, ``slow`` for ``make test-all``."""
    for item in items:
        if _is_one_of(item, _QUICK):
            item.add_marker(pytest.mark.quick)
        if _is_one_of(item, _SLOW) and not _is_one_of(item, _SAMPLES):
            item.add_marker(pytest.mark.slow)
    # One after the other: then nothing is dropped between them that others could share.
    items.sort(key=_is_unoptimised)
    is_all = config.args == config.getini("testpaths") and config.option.markexpr != "quick"
    if is_all:  # then what is listed above must be there
        ids = [item.nodeid for item in items]
        for part in (*_QUICK, *_SLOW, *_SAMPLES, *_UNOPTIMISED):
            if not any(name.startswith(part) for name in ids):
                raise pytest.UsageError(f"tests/conftest.py lists {part}, which is no test")


def _is_one_of(item: pytest.Item, parts: tuple[str, ...]) -> bool:
    return item.nodeid.startswith(parts)


def _is_unoptimised(item: pytest.Item) -> bool:
    return _is_one_of(item, _UNOPTIMISED) and item.get_closest_marker("slow") is None


class _Options:
    """The options of JAX's compiler, of which a test may have its own."""

    def __init__(self) -> None:
        self.own: dict[str, int | bool] = {}
        self._usual = compiler.get_compile_options
        compiler.get_compile_options = self  # type: ignore[assignment]

    def __call__(self, *args, env_options_overrides=None, **settings):
        options = self.own | dict(env_options_overrides or {})
        return self._usual(*args, env_options_overrides=options, **settings)


_options = _Options()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chooses how programs are compiled, before any fixture compiles one."""
    own = _OPTIONS if _is_unoptimised(item) else {}
    if _options.own and not own:
        jax.clear_caches()  # nothing that was compiled without optimisation serves here
    _options.own = own


@pytest.fixture(autouse=True)
def _forget_other_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test runs what another made of a changed engine, or hears of another's fits."""
    is_changed = not _CHANGING.isdisjoint(request.fixturenames)
    if is_changed:
        _changed.add(request.path)
        forget_kernels()
    yield
    if is_changed:
        forget_kernels()
    forget_fits()


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drops programs after files that change the engine, and where they would fill the memory.

    Other files share what they compile; kept for good, all programs take tens of gigabytes.
    """
    yield
    forget_kernels()
    if request.path in _changed or _resident_bytes() > _MOST_MEMORY:
        jax.clear_caches()


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:  # not on Linux: then nothing is shared between files
        return _MOST_MEMORY + 1
    return pages * os.sysconf("SC_PAGE_SIZE")
