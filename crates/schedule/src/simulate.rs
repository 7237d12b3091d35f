//! What a schedule would cost if all stages were equal.

use std::{collections::HashMap, time::Duration};

use crate::{Action, Pass, Schedule, Span, SpanKind, Timeline};

impl Schedule {
    /// The timeline of a step in which every forward pass takes `forward` and every backward
    /// pass `backward`, and sending takes no time.
    ///
    /// Each action begins as soon as its worker is free and its input is there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stovepipe_schedule::{GPipe, Scheduler};
    ///
    /// let second = Duration::from_secs(1);
    /// let timeline = GPipe.schedule(2, 3)?.timeline(second, 2 * second);
    /// assert_eq!(timeline.length(), 12 * second); // (m + p − 1) × (forward + backward)
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn timeline(&self, forward: Duration, backward: Duration) -> Timeline {
        let stages = self.stages();
        let mut ends = HashMap::new();
        let mut workers: Vec<Vec<Span>> = vec![Vec::new(); self.workers().len()];
        let replayed = self.replay(|worker, action| {
            let free = workers[worker].last().map(|span| span.end);
            let arrived = action
                .input(stages)
                .and_then(|input| ends.get(&input).copied());
            let start = free.max(arrived).unwrap_or_default();
            let span = match action.pass {
                Pass::Forward => span(action, SpanKind::Forward, start, forward),
                Pass::Backward => span(action, SpanKind::Backward, start, backward),
            };
            ends.insert(action, span.end);
            workers[worker].push(span);
        });
        debug_assert_eq!(replayed, Ok(()), "a schedule has no deadlock");
        Timeline { workers }
    }
}

fn span(action: Action, kind: SpanKind, start: Duration, length: Duration) -> Span {
    Span {
        action: Some(action),
        kind,
        start,
        end: start + length,
    }
}
