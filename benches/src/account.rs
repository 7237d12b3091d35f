//! Where the time of a step went, from the timeline that the step itself recorded.

use stovepipe::schedule::{Action, Pass, Span, SpanKind, Timeline};

/// The seconds of one worker in one step, from the call of the step to its return.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Forward passes.
    pub forward: f64,
    /// Forward passes once more.
    pub recompute: f64,
    /// Backward passes, whole or in halves.
    pub backward: f64,
    /// From the moment it was free until its next input had been computed, and from its last pass
    /// to the last of all workers.
    pub waiting: f64,
    /// Neither: copying modules, handing over, gathering.
    pub engine: f64,
    /// The optimizer's update, which comes after the step.
    pub update: f64,
}

impl Account {
    /// Adds another step.
    pub fn add(&mut self, other: Self) {
        self.forward += other.forward;
        self.recompute += other.recompute;
        self.backward += other.backward;
        self.waiting += other.waiting;
        self.engine += other.engine;
        self.update += other.update;
    }

    /// The mean of so many steps, of which it is the sum.
    #[must_use]
    pub fn divided_by(self, steps: f64) -> Self {
        Self {
            forward: self.forward / steps,
            recompute: self.recompute / steps,
            backward: self.backward / steps,
            waiting: self.waiting / steps,
            engine: self.engine / steps,
            update: self.update / steps,
        }
    }

    /// All of it but the update.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.forward + self.recompute + self.backward + self.waiting + self.engine
    }
}

/// The accounts of all workers. `seconds` is the step as its caller saw it, without the update.
#[must_use]
pub fn accounts(timeline: &Timeline, seconds: f64) -> Vec<Account> {
    let workers = timeline.workers.iter();
    workers
        .map(|spans| account(spans, timeline, seconds))
        .collect()
}

fn account(spans: &[Span], timeline: &Timeline, seconds: f64) -> Account {
    let mut account = Account::default();
    let mut free = 0.0;
    for span in spans {
        let length = span.length().as_secs_f64();
        match span.kind {
            SpanKind::Forward => account.forward += length,
            SpanKind::Recompute => account.recompute += length,
            SpanKind::Backward | SpanKind::InputGradient | SpanKind::WeightGradient => {
                account.backward += length;
            }
            SpanKind::Update => {
                account.update += length;
                continue;
            }
        }
        let start = span.start.as_secs_f64();
        let arrived = span.action.and_then(|action| arrival(timeline, action));
        account.waiting += (arrived.unwrap_or(0.0).min(start) - free).max(0.0);
        free = span.end.as_secs_f64();
    }
    let last = passes(timeline).map(|span| span.end.as_secs_f64());
    account.waiting += last.fold(free, f64::max) - free;
    account.engine = seconds - account.step();
    account
}

/// When what an action waits for was done; nothing if it waits for nothing.
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
    spans.filter(|span| span.kind != SpanKind::Update)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use stovepipe::{prelude::*, schedule::Costs};

    use super::*;

    #[test]
    fn what_is_neither_work_nor_waiting_is_the_engines() {
        let schedule = GPipe.schedule(2, 3).unwrap();
        let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
        let timeline = schedule.simulate(&costs).unwrap().timeline();
        for account in accounts(&timeline, 13.0) {
            let Account {
                forward, backward, ..
            } = account;
            assert_eq!((forward, backward), (3.0, 6.0));
            assert!((account.waiting - 3.0).abs() < 1e-9, "{account:?}");
            assert!((account.engine - 1.0).abs() < 1e-9, "{account:?}");
        }
    }
}
