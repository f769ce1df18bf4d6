"""What the engine promises, and which tests show each; `test_cases` checks that they exist.

Figures are shown by ``make bench GROUP=calls``.  A value names tests as `test_cases` says.
"""

from __future__ import annotations

from typing import Final

OPENAI: Final = "instrumentation/test_openai"
SCENARIOS: Final = "support/scenarios.py"
ENTRY: Final = "agent/test_entry.py"
EXIT: Final = "agent/test_lifecycle_exit.py"
FORK: Final = "agent/test_lifecycle_fork.py"
GREEN: Final = "agent/test_lifecycle_green.py"
CURRENT: Final = "agent/test_context_current.py"
REENTRY: Final = "agent/test_abuse_reentry.py"
SENDING: Final = "exporters/test_otlp_sending.py"
ENCODING: Final = "exporters/test_otlp_encoding.py"
RECEIVERS: Final = "integration/test_otlp_receivers.py"
OWED: Final[dict[str, tuple[str, ...]]] = {
    "the short way tells what the long one tells": (
        f"{ENTRY}::test_both_ways_tell_the_same",
        f"{ENTRY}::test_usual_calls_take_the_short_way",
        "instrumentation/test_openai_snapshot.py::test_the_same_is_kept",
        "agent/test_filling.py::test_compiled_and_python_do_the_same",
    ),
    "scalars are kept at once, the rest is read later": (
        f"{SCENARIOS}::arguments_are_not_changed",
        "instrumentation/test_openai_snapshot.py::test_what_may_change_is_copied",
    ),
    "what is not sampled is measured all the same": (
        "agent/test_head_sampling.py::test_what_is_not_sampled_is_measured_all_the_same",
        "agent/test_head_sampling.py::test_a_call_is_sampled_as_its_sampler_says",
    ),
    "the worker works in slices": ("agent/test_worker.py::test_the_gil_is_offered_when_others_have_run",),
    "bounded by count and bytes, in the order of drops": (
        "agent/test_worker.py::test_spans_are_bounded_by_count_and_by_bytes",
        "agent/test_worker.py::test_tensors_go_first_then_summaries_then_spans",
        "agent/test_worker.py::test_after_stop_everything_is_counted",
    ),
    "batches and requests are bounded by bytes": (f"{ENCODING}::test_requests_are_split_by_spans_and_bytes",),
    "core attributes survive size limits": (
        "agent/test_abuse_sizes.py::test_core_facts_survive_a_huge_call",
    ),
    "bytes of OTLP as the SDK's": (
        f"{ENCODING}::test_equals_the_sdks_encoder_on_every_span_shape",
        f"{ENCODING}::test_metrics_equal_the_sdks_encoder",
        f"{ENCODING}::test_logs_equal_the_sdks_encoder_on_every_shape",
        f"{ENCODING}::test_caches_stay_bounded",
    ),
    "HTTP and gRPC, retries, partial success": (
        f"{RECEIVERS}::test_partial_success_over_http",
        f"{RECEIVERS}::test_partial_success_over_grpc",
        f"{SENDING}::test_a_busy_collector_is_tried_again",
        f"{SENDING}::test_partial_success_counts_what_was_rejected",
    ),
    "logs: events, and the current span in the service's own": (
        "agent/test_events.py::test_details_are_the_spans_attributes_with_structure",
        "agent/test_logs.py::test_records_name_the_current_span",
    ),
    "fork, spawn, prefork servers; nothing twice, no lock inherited": (
        f"{FORK}::test_a_forked_child_exports_its_own_spans_once",
        f"{FORK}::test_multiprocessing_children_are_observed",
        f"{FORK}::test_forks_while_threads_are_at_work",
        "agent/test_lifecycle_gunicorn.py::test_gunicorn_with_preload",
    ),
    "gevent and eventlet": (
        f"{GREEN}::test_a_monkey_patched_program",
        f"{GREEN}::test_a_monkey_patched_program_with_a_dead_collector_ends",
        f"{GREEN}::test_a_fork_in_a_monkey_patched_program",
    ),
    "the end: SIGTERM, a dead or silent collector, two seconds": (
        f"{EXIT}::test_everything_is_exported_at_the_end",
        f"{EXIT}::test_a_dead_collector_delays_the_exit_by_two_seconds_at_most",
        f"{EXIT}::test_a_user_handler_of_sigterm_is_left_alone",
        f"{EXIT}::test_an_exporter_of_the_users_own_may_do_what_it_likes",
    ),
    "flush and deferred": (
        f"{EXIT}::test_flush_before_os_exit",
        f"{EXIT}::test_not_deferred_needs_no_thread_and_no_flush",
    ),
    "parents through threads": (
        "agent/test_context_threads.py::test_a_propagated_function_has_the_callers_context",
        "agent/test_context_threads.py::test_thread_pools_carry_the_context_when_asked_to",
    ),
    "generators closed elsewhere, wait_for, break; no word about contexts": (
        f"{CURRENT}::close_in_another_task",
        f"{CURRENT}::wait_for_each",
        f"{CURRENT}::break_early",
        f"{CURRENT}::test_a_stream_that_is_left_early",
        "contract/test_client_endings.py::test_an_async_stream_ends_once_and_logs_nothing",
    ),
    "beside others: one span a call, tokens counted once": (
        "agent/test_abuse_others.py::test_another_instrumentor_on_the_same_method",
        "agent/test_abuse_others.py::test_instrumented_twice",
        "agent/test_abuse_others.py::test_a_span_inside_ours_in_their_pipeline_takes_its_place",
    ),
    "fixed clock and ids": (
        "agent/test_engine_fixed.py::test_two_runs_are_equal",
        "agent/test_engine_fixed.py::test_afterwards_all_is_real_again",
    ),
    "differential: without, with, and with all of ours raising": (
        "agent/test_abuse_calls.py::test_a_service_notices_nothing",
        "agent/test_abuse_calls.py::test_a_service_notices_nothing_when_we_fail",
    ),
    "generators as arguments": (
        f"{SCENARIOS}::generators_are_not_consumed",
        "instrumentation/test_openai_snapshot.py::test_what_may_change_is_copied",
    ),
    "every end of a stream": (
        f"{SCENARIOS}::streams_that_are_left",
        f"{SCENARIOS}::streams_that_fail",
        f"{SCENARIOS}::streams_whose_reader_fails",
        "contract/test_client_endings.py::test_a_stream_ends_once_however_it_is_left",
    ),
    "cancellation, recursion, re-entrancy": (
        f"{SCENARIOS}::cancelled_calls",
        f"{SCENARIOS}::endless_recursion",
        f"{SCENARIOS}::calls_within_calls",
        f"{REENTRY}::test_an_exporter_that_calls_the_client",
    ),
    "patched after us": ("agent/test_abuse_others.py::test_uninstrumented_below_another_patch",),
    "uninstrumented in mid-flight": (
        f"{REENTRY}::test_uninstrumented_during_a_call",
        f"{REENTRY}::test_changed_in_mid_flight",
        f"{REENTRY}::test_changed_before_a_coroutine_begins",
        f"{REENTRY}::test_instrumenting_in_a_loop_while_threads_call",
    ),
    "pickles and copies": (
        f"{SCENARIOS}::copies_and_pickles",
        f"{OPENAI}_streams.py::test_copies_and_pickles_are_as_without_the_agent",
        f"{ENTRY}::test_a_span_is_copied_as_any_object",
    ),
    "surrogates, NULs, 20 MB": (
        f"{SCENARIOS}::texts_of_all_kinds",
        f"{ENCODING}::test_lone_surrogates_are_replaced_everywhere",
        "agent/test_abuse_sizes.py::test_huge_calls_take_no_healthy_ones_with_them",
    ),
    "a million calls, the collector killed: exact losses": (
        "soak/test_soak.py::test_every_span_is_accounted_for",
        "soak/test_soak.py::test_an_overload_is_counted_to_the_last_span",
    ),
    "the page of figures is made from the run": (
        "test_benchmarks.py::test_the_page_tells_missed_goals_and_unequal_work",
        "test_benchmarks.py::test_a_run_replaces_only_its_own_group",
    ),
}
