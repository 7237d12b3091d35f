//! The names of workers in timelines.

use stovepipe_pipeline::Stage;

/// Each worker's name: its stages, with their layers if it has one stage, and its device.
pub(super) fn worker_labels(stages: &[Stage]) -> Vec<String> {
    let workers = stages.iter().map(|stage| stage.worker + 1).max();
    let label = |worker| {
        let own = stages
            .iter()
            .enumerate()
            .filter(|(_, s)| s.worker == worker);
        match own.collect::<Vec<_>>()[..] {
            [(index, stage)] => one_stage_label(index, stage),
            ref several => {
                let numbers: Vec<_> = several.iter().map(|(index, _)| index.to_string()).collect();
                let device = several.first().map_or("", |(_, stage)| &stage.device_name);
                format!("stages {} · {device}", numbers.join(", "))
            }
        }
    };
    (0..workers.unwrap_or(0)).map(label).collect()
}

fn one_stage_label(index: usize, stage: &Stage) -> String {
    let (first, last) = (stage.layers.start, stage.layers.end - 1);
    let device = &stage.device_name;
    if first == last {
        return format!("stage {index} · layer {first} · {device}");
    }
    format!("stage {index} · layers {first}–{last} · {device}")
}
