"""Public fault reports about products of this kind, and which test of ours tries each.

Three lists: `REPORTS` (numbers of the case collection), `BUGS` (numbers of the list of bugs found in
instrumentations of model clients) and `OWED` (what the engine promises, report or not).  A value names
tests, as ``file::function`` below ``tests/``; a function of ``support/scenarios.py`` runs in
`test_abuse_calls`: without us, with us, and with each function of ours made to raise.  The test checks that
all of them exist.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from owed import OWED

TESTS: Final = Path(__file__).parent.parent
OPENAI: Final = "instrumentation/test_openai"
CLIENTS: Final = "contract/test_client_contract.py"
METHODS: Final = "contract/test_method_contract.py"
LLM: Final = "instrumentation/test_llm_cases.py"
SCENARIOS: Final = "support/scenarios.py"

REPORTS: Final[dict[str, tuple[str, ...]]] = {
    "1 raw responses": (
        f"{METHODS}::test_a_call_is_one_span_and_no_difference",
        f"{OPENAI}_unchanged.py::test_the_service_sees_no_difference",
    ),
    "2 raw responses of streams": (
        f"{OPENAI}_unchanged.py::test_the_service_sees_no_difference",
        "agent/test_bodies.py::test_events_are_seen_whole_however_they_arrive",
    ),
    "4 methods that do not go through create": (
        f"{OPENAI}_responses.py::test_the_service_sees_no_difference",
        f"{OPENAI}_more.py::test_what_no_model_works_on_has_no_span",
        "instrumentation/test_sdk_surfaces.py::test_every_method_is_covered_or_said_not_to_be",
    ),
    "6 a stream replaced by a generator": (
        f"{OPENAI}_unchanged.py::test_the_service_sees_no_difference",
        f"{SCENARIOS}::streams_that_are_left",
        f"{LLM}::test_closing_an_async_stream_closes_the_transport",
    ),
    "8 isinstance of streams": (
        f"{LLM}::test_streams_are_what_frameworks_ask_for",
        f"{OPENAI}_streams.py::test_copies_and_pickles_are_as_without_the_agent",
        f"{SCENARIOS}::streams_can_be_copied_if_they_could_be",
    ),
    "9 early break, close, drop": (
        f"{OPENAI}_streams.py::test_a_stream_ends_once_however_it_is_left",
        f"{OPENAI}_streams.py::test_a_forgotten_stream_is_told_as_abandoned",
        f"{SCENARIOS}::streams_that_are_read_in_other_threads",
        "agent/test_engine.py::test_a_stream_ends_exactly_once",
    ),
    "11 tool calls in pieces": (
        "instrumentation/test_llm_facts.py::test_tools_offered_and_called_are_told_by_name",
        f"{OPENAI}_facts.py::test_parallel_tool_calls_are_put_together",
        f"{OPENAI}_facts.py::test_a_legacy_function_call_is_put_together",
    ),
    "13 the stream manager of anthropic": (
        "instrumentation/test_anthropic.py::test_streams_are_the_sdks_own",
        "instrumentation/test_anthropic_blocks.py::test_pieces_without_their_start_are_kept",
    ),
    "15 odd inputs, moved modules": (
        "instrumentation/test_google_genai.py::test_contents_become_opentelemetrys_parts",
        "agent/test_engine_install.py::test_a_module_that_is_gone_costs_that_module",
        "agent/test_engine_install.py::test_a_method_that_is_gone_costs_that_method",
    ),
    "16 two layers, one call": (
        f"{OPENAI}_others.py::test_one_span_a_call",
        f"{LLM}::test_tokens_that_an_agent_adds_up_are_billed_once",
        "agent/test_abuse_others.py::test_another_instrumentor_on_the_same_method",
        "agent/test_abuse_others.py::test_a_span_inside_ours_in_their_pipeline_takes_its_place",
        "agent/test_abuse_others.py::test_a_subclass_that_overrides_and_calls_super",
        "agent/test_abuse_others.py::test_instrumented_twice",
    ),
    "18 huge content": (
        f"{LLM}::test_huge_pictures_cost_their_hash",
        f"{LLM}::test_fifty_huge_calls_at_once_hold_nothing",
        "agent/test_abuse_sizes.py::test_core_facts_survive_a_huge_call",
        "agent/test_abuse_sizes.py::test_blobs_become_type_size_and_hash",
    ),
    "19 asynchronous methods that are gone": (
        "instrumentation/test_qdrant.py::test_every_method_of_the_installed_version_is_found_and_given_back",
        "agent/test_engine_install.py::test_a_method_that_is_gone_costs_that_method",
    ),
    "23 a distribution of another name": (
        "agent/test_engine_install.py::test_the_module_decides_not_the_distribution",
    ),
    "25 FAISS": (
        "instrumentation/test_faiss.py::test_every_class_is_observed",
        "instrumentation/test_faiss.py::test_padding_is_no_hit",
        "instrumentation/test_faiss.py::test_a_child_can_search",
    ),
    "26 unusual tensors": (
        "instrumentation/test_torch_summary.py::test_what_has_no_plain_memory_is_refused_with_a_reason",
    ),
    "27 structures of outputs": (
        "instrumentation/test_torch_outputs.py::test_generators_are_not_consumed",
        "instrumentation/test_torch_outputs.py::test_loops_and_sizes_are_bounded",
    ),
    "29 torch.compile": (
        "instrumentation/test_torch_compile.py::test_graphs_and_compilations_are_those_of_the_plain_model",
    ),
    "32 threads and replicas": (
        "instrumentation/test_torch_slots.py::test_eight_threads_while_observers_come_and_go",
        "instrumentation/test_torch_copies.py::test_copies_are_plain_and_compute_with_their_own_weights",
    ),
    "33 save, deepcopy, pickle": (
        "instrumentation/test_torch_copies.py::test_pickles_of_watched_models_need_no_neuronscope",
        "instrumentation/test_torch_copies.py::test_state_dict_and_loading_are_unharmed",
    ),
    "35 meta and lazy weights": (
        "instrumentation/test_torch_slots.py::test_lazy_modules_and_meta_weights_are_left_alone_until_they_are_real",
    ),
    "36 created in a different Context": (
        "agent/test_context_current.py::test_a_stream_that_is_left_early",
        "agent/test_context_current.py::test_a_suspended_generator_is_no_parent",
        "agent/test_context_current.py::test_a_coroutine_that_is_driven_in_changing_contexts",
    ),
    "38 cancellation": (
        f"{METHODS}::test_a_cancelled_call",
        f"{SCENARIOS}::cancelled_calls",
        f"{SCENARIOS}::a_sibling_in_a_task_group_fails",
        f"{OPENAI}_streams.py::test_a_cancelled_call_is_cancelled_and_told",
    ),
    "39 fork and prefork": (
        "agent/test_lifecycle_fork.py::test_a_forked_child_exports_its_own_spans_once",
        "agent/test_lifecycle_fork.py::test_forks_while_threads_are_at_work",
        "agent/test_lifecycle_gunicorn.py::test_gunicorn_with_preload",
    ),
    "40 exit with a dead collector": (
        "agent/test_lifecycle_exit.py::test_a_dead_collector_delays_the_exit_by_two_seconds_at_most",
        "agent/test_lifecycle_exit.py::test_a_user_handler_of_sigterm_is_left_alone",
    ),
    "42 attribute count and size": (
        "agent/test_abuse_sizes.py::test_huge_calls_take_no_healthy_ones_with_them",
        "exporters/test_otlp_encoding.py::test_a_giant_span_does_not_take_others_down",
        "integration/test_otlp_receivers.py::test_no_grpc_message_reaches_four_mebibytes",
    ),
    "44 redaction that other spans bypass": (
        f"{METHODS}::test_a_redactor_masks_every_call",
        "agent/test_events.py::test_content_goes_where_it_is_allowed_and_nowhere_else",
        "integration/test_service_unchanged.py::test_observation_changes_no_byte_and_leaks_none",
    ),
    "45 traces that do not join": (
        f"{OPENAI}_agent.py::test_a_server_of_ones_own_gets_the_spans_id",
        f"{OPENAI}_agent.py::test_the_services_own_header_wins",
        f"{OPENAI}_agent.py::test_one_header_beside_an_http_instrumentor",
        f"{OPENAI}_unchanged.py::test_retries_are_one_span",
        f"{LLM}::test_an_unsampled_trace_is_joined_unsampled",
    ),
    "47 the multi-process directory": (
        "exporters/test_prometheus_shared.py::test_a_damaged_or_foreign_file_costs_nothing",
    ),
    "48 cardinality": ("agent/test_engine_install.py::test_junk_model_names_fill_no_memory",),
    "52 disk full": (
        "integration/test_nsz_disks.py::test_a_disk_that_fills_and_is_freed_again",
        "exporters/test_nsz_failures.py::test_a_full_disk_costs_only_what_did_not_fit",
    ),
}
BUGS: Final[dict[str, tuple[str, ...]]] = {
    "1 messages from a generator": (f"{SCENARIOS}::generators_are_not_consumed",),
    "2 points from a generator": ("instrumentation/test_qdrant.py::test_a_generator_is_stored_in_full",),
    "3 content from a generator": (f"{SCENARIOS}::generators_are_not_consumed",),
    "4-10 raw responses": (f"{OPENAI}_unchanged.py::test_the_service_sees_no_difference",),
    "9 coroutines that are never awaited": (
        "agent/test_context_current.py::test_a_coroutine_that_is_never_awaited",
    ),
    "11-14 native types and helpers": ("instrumentation/test_anthropic.py::test_streams_are_the_sdks_own",),
    "15 with on a stream": (f"{SCENARIOS}::streams_that_are_left",),
    "16 classes given as formats": (f"{SCENARIOS}::evil_arguments_and_results_pass",),
    "17-18 copies and pickles": (
        f"{SCENARIOS}::copies_and_pickles",
        "agent/test_bodies.py::test_a_watched_response_can_be_pickled",
    ),
    "19 chunks without choices": (f"{OPENAI}_facts.py::test_odd_answers_give_no_facts",),
    "20 options that we change": (f"{SCENARIOS}::arguments_are_not_changed",),
    "21-22 the event loop": ("agent/test_engine_install.py::test_an_event_loop_never_waits_for_us",),
    "23 events out of order": (
        "instrumentation/test_anthropic_blocks.py::test_pieces_without_their_start_are_kept",
    ),
    "24-25 our own exceptions": (
        "agent/test_abuse_calls.py::test_a_service_notices_nothing_when_we_fail",
        f"{CLIENTS}::test_faults_of_the_adapter_change_nothing",
    ),
    "26 things that are not JSON": (
        "agent/test_abuse_sizes.py::test_things_that_are_not_json",
        f"{SCENARIOS}::evil_arguments_and_results_pass",
    ),
    "27, 30 spans that are never ended, tables that grow": (
        "agent/test_engine_memory.py::test_a_finished_call_leaves_nothing_behind",
        "agent/test_engine_memory.py::test_a_call_that_the_queue_refuses_leaves_nothing_behind",
    ),
    "28 CancelledError": (f"{SCENARIOS}::cancelled_calls",),
    "29, 31 failures in mid-stream": (
        f"{SCENARIOS}::streams_that_fail",
        f"{CLIENTS}::test_a_stream_cut_off_is_an_error",
    ),
    "32 contexts": ("agent/test_engine.py::test_closing_an_async_stream_elsewhere_logs_nothing",),
    "33 executors": (
        "agent/test_context_threads.py::test_thread_pools_carry_the_context_when_asked_to",
        "agent/test_context_threads.py::test_a_propagated_function_has_the_callers_context",
    ),
    "34 usage in the last chunk, estimates": (
        f"{OPENAI}_facts.py::test_usage_that_never_came_is_unknown",
        f"{OPENAI}_facts.py::test_the_last_of_several_usages_counts",
    ),
    "35 streamed tool calls": (f"{OPENAI}_facts.py::test_parallel_tool_calls_are_put_together",),
    "36 cached tokens": (
        "instrumentation/test_anthropic_blocks.py::test_cached_tokens_are_part_of_the_input",
    ),
    "37 counted twice": (
        "agent/test_abuse_others.py::test_another_instrumentor_on_the_same_method",
        "agent/test_engine.py::test_nested_calls_of_one_library_are_one_span",
    ),
    "38 values not given": (f"{OPENAI}_facts.py::test_values_not_given_are_not_told",),
    "39 errors of vector stores": (
        "instrumentation/test_qdrant.py::test_async_calls_are_timed_and_their_errors_told",
    ),
    "40 lists of methods": (
        "agent/test_engine_install.py::test_an_attribute_that_is_no_function_is_left_alone",
    ),
    "41 content although it is off": (f"{CLIENTS}::test_content_is_recorded_only_when_asked_for",),
    "42 one span takes a batch with it": (
        "exporters/test_otlp_encoding.py::test_a_giant_span_does_not_take_others_down",
    ),
    "43 names imported before us": (
        "instrumentation/test_ollama.py::test_functions_bound_before_us_are_observed",
        f"{OPENAI}_agent.py::test_methods_bound_before_instrumenting_are_observed",
    ),
    "44 parse and stream": (f"{OPENAI}_others.py::test_one_span_a_call",),
    "45 fork": ("agent/test_lifecycle_fork.py::test_multiprocessing_children_are_observed",),
    "46 Prometheus in several processes": (
        "exporters/test_prometheus_shared.py::test_processes_are_added_up_and_ended_ones_still_count",
    ),
    "47 frozen processes": (
        "agent/test_lifecycle_exit.py::test_not_deferred_needs_no_thread_and_no_flush",
        "agent/test_lifecycle_exit.py::test_flush_before_os_exit",
    ),
}
# Reports that no test of ours can try: what they are about is not ours, or somebody else's to show.
NOT_TRIED: Final = {
    "REPORTS 51": "dashboards are proven against a real Prometheus by their own tests",
    "BUGS 48": "tracing inside vLLM: we observe it from its client, and its own traces join by traceparent",
}


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the functions of a file, in classes too."""
    tree = ast.parse((TESTS / file).read_text())
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in nodes)


@pytest.mark.parametrize("table", [REPORTS, BUGS, OWED], ids=["reports", "bugs", "owed"])
def test_every_report_has_a_test(table: dict[str, tuple[str, ...]]) -> None:
    """Each names at least one, and all of them exist."""
    missing = [
        f"{report}: {place}"
        for report, places in table.items()
        for place in places or ("nothing",)
        if place.count("::") != 1 or place.split("::")[1] not in functions_of(place.split("::")[0])
    ]
    assert not missing
