//! A gallery of published bugs of other frameworks. The verifier must find each.
//!
//! Each case rebuilds a bug around the engine: in a training step, in a layer or in an objective. Exactly
//! one check of the verifier fails. So without that check, the bug would be missed. The same code without
//! the bug passes all checks, so it is the bug that is found.

mod backward;
mod layers;
mod objectives;
mod steps;

use stovepipe_verify::Report;

use crate::broken::failing;

/// A published bug.
struct Case {
    /// Where it is discussed.
    thread: &'static str,
    /// What it did.
    bug: &'static str,
    /// The check that finds it.
    found_by: &'static str,
    /// Verifies code with the bug (`true`) or without it.
    verify: fn(bool) -> Report,
}

const CASES: [Case; 10] = [
    Case {
        thread: "pytorch/torchtitan#2972",
        bug: "the loss was divided by the tokens after the backward pass: gradients were not",
        found_by: "whole mini-batch",
        verify: |has_bug| steps::verify(steps::scaled_by_tokens, has_bug),
    },
    Case {
        thread: "pytorch/torchtitan#2206",
        bug: "each micro-batch had the mean over its own tokens, however few",
        found_by: "whole mini-batch",
        verify: objectives::mean_of_own_tokens,
    },
    Case {
        thread: "deepspeedai/DeepSpeed#8154",
        bug: "each stage divided the gradient that it got by the number of micro-batches",
        found_by: "same bits",
        verify: |has_bug| steps::verify(steps::scaled_at_each_stage, has_bug),
    },
    Case {
        thread: "NVIDIA-NeMo/Automodel#3530",
        bug: "stages were set up again between micro-batches, which cleared their gradients",
        found_by: "whole mini-batch",
        verify: |has_bug| steps::verify(steps::only_last_part_kept, has_bug),
    },
    Case {
        thread: "pytorch/torchtitan#1732",
        bug: "each accumulation step divided the sum of all before it, too",
        found_by: "whole mini-batch",
        verify: |has_bug| steps::verify(steps::sum_divided_again, has_bug),
    },
    Case {
        thread: "NVIDIA/Megatron-LM#5271",
        bug: "with two workers, both neighbours are one: messages got each other's shapes",
        found_by: "same bits",
        verify: layers::crossed_shapes,
    },
    Case {
        thread: "NVIDIA/Megatron-LM#844",
        bug: "tied weights added the other stage's gradient of one replica, not of all",
        found_by: "replicas",
        verify: steps::tied_gradient_of_one_replica,
    },
    Case {
        thread: "NVIDIA/Megatron-LM#4641",
        bug: "the copy of tied weights on the last stage had another optimizer, and drifted",
        found_by: "same bits",
        verify: layers::drifting_copy,
    },
    Case {
        thread: "tracel-ai/burn#4650",
        bug: "data-parallel replicas shared gradients, but not the statistics of batch norm",
        found_by: "replicas",
        verify: steps::statistics_of_one_replica,
    },
    Case {
        thread: "tracel-ai/burn#5573",
        bug: "a backward pass freed parts of another thread's graph: a gradient was missing",
        found_by: "same bits",
        verify: |has_bug| steps::verify(steps::lost_gradient, has_bug),
    },
];

#[test]
fn each_published_bug_is_found_and_by_one_check_only() {
    for case in CASES {
        let about = format!("{}: {}", case.thread, case.bug);
        let sound = (case.verify)(false);
        assert!(sound.holds(), "{about}: without the bug\n{sound}");
        let mut report = (case.verify)(true);
        assert_eq!(failing(&report), [case.found_by], "{about}\n{report}");
        report.checks.retain(|check| check.name != case.found_by);
        assert!(report.holds(), "{about}: without its check\n{report}");
    }
}

#[test]
fn the_documentation_has_each_published_bug() {
    let page = include_str!("../../../../../docs/src/how-to/verify.md");
    for Case {
        thread, found_by, ..
    } in CASES
    {
        let is_about = |row: &&str| row.starts_with('|') && row.contains(&format!("[{thread}]"));
        let rows: Vec<_> = page.lines().filter(is_about).collect();
        assert_eq!(rows.len(), 1, "{thread}");
        assert!(rows[0].ends_with(&format!("| {found_by} |")), "{}", rows[0]);
    }
}
