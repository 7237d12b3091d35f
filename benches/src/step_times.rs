//! Where the time of a step went, from the timeline that the step itself recorded.

use stovepipe::schedule::{Action, Pass, Span, SpanKind, Timeline};

/// The seconds of one worker in one step, from the call of the step to its return.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    pub forward: f64,
    pub recompute: f64,
    /// Backward passes, whole or in halves.
    pub backward: f64,
    /// From the moment it was free until its next input had been computed, and from its last pass
    /// to the last of all workers.
    pub waiting: f64,
    /// The rest: copying modules, transfers, collecting results.
    pub engine: f64,
    /// The optimizer's update, which comes after the step.
    pub update: f64,
}

impl StepTimes {
    pub fn mean(steps: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| steps.iter().map(of).sum::<f64>() / steps.len() as f64;
        Self {
            forward: mean(|step| step.forward),
            recompute: mean(|step| step.recompute),
            backward: mean(|step| step.backward),
            waiting: mean(|step| step.waiting),
            engine: mean(|step| step.engine),
            update: mean(|step| step.update),
        }
    }

    /// The whole step without the update.
    pub fn step(&self) -> f64 {
        self.forward + self.recompute + self.backward + self.waiting + self.engine
    }
}

/// The times of all workers. `seconds` is the step as its caller measured it, without the update.
pub fn step_times(timeline: &Timeline, seconds: f64) -> Vec<StepTimes> {
    let times = |spans: &Vec<Span>| worker_times(spans, timeline, seconds);
    timeline.workers.iter().map(times).collect()
}

fn worker_times(spans: &[Span], timeline: &Timeline, seconds: f64) -> StepTimes {
    let mut times = StepTimes::default();
    let mut free = 0.0;
    for span in spans {
        let length = span.length().as_secs_f64();
        match span.kind {
            SpanKind::Forward => times.forward += length,
            SpanKind::Recompute => times.recompute += length,
            SpanKind::Backward | SpanKind::InputGradient | SpanKind::WeightGradient => {
                times.backward += length;
            }
            SpanKind::Update => {
                times.update += length;
                continue;
            }
            // Beside the passes.
            SpanKind::AllReduce => continue,
        }
        let start = span.start.as_secs_f64();
        let arrived = span.action.and_then(|action| arrival(timeline, action));
        times.waiting += (arrived.unwrap_or(0.0).min(start) - free).max(0.0);
        free = span.end.as_secs_f64();
    }
    let last = passes(timeline).map(|span| span.end.as_secs_f64());
    times.waiting += last.fold(free, f64::max) - free;
    times.engine = seconds - times.step();
    times
}

/// When the input of an action was computed; `None` if it waits for nothing.
fn arrival(timeline: &Timeline, action: Action) -> Option<f64> {
    let (stage, sent): (_, &[Pass]) = match action.pass {
        Pass::Forward => (action.stage.checked_sub(1)?, &[Pass::Forward]),
        Pass::Backward | Pass::InputGradient => {
            (action.stage + 1, &[Pass::Backward, Pass::InputGradient])
        }
        Pass::WeightGradient | Pass::Update => return None,
    };
    let own = passes(timeline).filter(|span| {
        let is_input = |other: Action| {
            (other.stage, other.micro_batch) == (stage, action.micro_batch)
                && sent.contains(&other.pass)
        };
        span.action.is_some_and(is_input)
    });
    own.map(|span| span.end.as_secs_f64()).reduce(f64::max)
}

fn passes(timeline: &Timeline) -> impl Iterator<Item = &Span> {
    let spans = timeline.workers.iter().flatten();
    spans.filter(|span| !matches!(span.kind, SpanKind::AllReduce | SpanKind::Update))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use stovepipe::{prelude::*, schedule::Costs};

    use super::*;

    #[test]
    fn the_engine_has_the_rest() {
        let schedule = GPipe.schedule(2, 3).unwrap();
        let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
        let timeline = schedule.simulate(&costs).unwrap().timeline();
        for times in step_times(&timeline, 13.0) {
            assert_eq!((times.forward, times.backward), (3.0, 6.0));
            assert!((times.waiting - 3.0).abs() < 1e-9, "{times:?}");
            assert!((times.engine - 1.0).abs() < 1e-9, "{times:?}");
        }
    }
}
