"""The tests that no release of PyTorch can change, by the reason."""

from __future__ import annotations

LEFT_OUT = {
    "pages and benchmarks, whose calls other tests make": (
        "tests/contract/torch/test_breadth.py",
        "tests/contract/torch/test_generation_benchmark.py",
        "tests/contract/torch/test_live_checks_page.py",
        "tests/contract/torch/test_operators_page.py",
        "tests/contract/torch/test_plan_page.py",
        "tests/contract/torch/test_serving_page.py",
    ),
    "bestof's own values, searches and policies, with fakes where PyTorch would answer": (
        "tests/unit/torch/convolution/test_convolution_catalogue.py",
        "tests/unit/torch/convolution/test_convolution_estimate.py",
        "tests/unit/torch/convolution/test_convolution_neighbourhood.py",
        "tests/unit/torch/convolution/test_overruns.py",
        "tests/unit/torch/engines/test_engines.py",
        "tests/unit/torch/ops/product/test_kept_shapes.py",
        "tests/unit/torch/ops/product/test_product_problem.py",
        "tests/unit/torch/ops/test_row_dtypes.py",
        "tests/unit/torch/plan/test_plan_arena.py",
        "tests/unit/torch/plan/test_plan_noisy_choices.py",
        "tests/unit/torch/process/data_loading/test_hill_climbing.py",
        "tests/unit/torch/process/data_loading/test_loader_report.py",
        "tests/unit/torch/process/data_loading/test_sample_order.py",
        "tests/unit/torch/process/data_loading/test_trial_times.py",
        "tests/unit/torch/process/ranks/test_agreed_search.py",
        "tests/unit/torch/process/ranks/test_agreement.py",
        "tests/unit/torch/process/ranks/test_entry.py",
        "tests/unit/torch/process/ranks/test_interleavings.py",
        "tests/unit/torch/process/test_freed_memory.py",
        "tests/unit/torch/rows/test_call_counts.py",
        "tests/unit/torch/test_configuration.py",
        "tests/unit/torch/test_entry_points.py",
        "tests/unit/torch/test_notebook_tables_of_torch.py",
    ),
    "results of bestof's kernels against an oracle": (
        "tests/contract/torch/test_check_alternative.py",
        "tests/numerics/torch/test_torch_plan_bfloat16.py",
        "tests/numerics/torch/test_torch_plan_convolutions_of_bfloat16.py",
        "tests/numerics/torch/test_torch_plan_of_bfloat16.py",
        "tests/unit/torch/functional/test_sigmoid_focal_loss.py::test_infinities_and_nan",
        "tests/unit/torch/functional/test_sigmoid_focal_loss.py::test_loss_and_gradient",
        "tests/unit/torch/functional/test_sigmoid_focal_loss.py::test_the_whole_range_of_floats",
        "tests/unit/torch/optim/test_lamb.py::test_steps",
        "tests/unit/torch/plan/test_activations.py",
        "tests/unit/torch/plan/test_plan_products.py",
        "tests/unit/torch/plan/test_plan_regimes.py::test_a_wrong_plan_is_found",
    ),
}


KEPT = "not (native and (numerics or test_torch_products.py))"
"""Which tests of one row each are kept: native rows compute the same with every release."""


def left_out() -> list[str]:
    """Return pytest's options that leave these tests out."""
    names = [name for group in LEFT_OUT.values() for name in group]
    options = [f"--deselect={one}" if "::" in one else f"--ignore={one}" for one in names]
    return [*options, "-k", KEPT]
