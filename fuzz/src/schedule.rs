//! Schedules as CSV and as text, and programs.

use stovepipe_schedule::{Costs, Program, Schedule, Wiring};

use super::input::text;

/// A schedule that is read from CSV is the same when it is written and read again.
pub fn csv(bytes: &[u8]) {
    text(bytes, |text| match Schedule::from_csv(text) {
        Ok(schedule) => {
            assert_eq!(
                Schedule::from_csv(&schedule.to_csv()).as_ref(),
                Ok(&schedule)
            );
            can_run(&schedule);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    });
}

/// The same for the notation with a line for each worker.
pub fn schedule(bytes: &[u8]) {
    text(bytes, |text| match text.parse::<Schedule>() {
        Ok(schedule) => {
            assert_eq!(schedule.to_string().parse().as_ref(), Ok(&schedule));
            can_run(&schedule);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    });
}

/// The same for schedules with their communication.
pub fn program(bytes: &[u8]) {
    text(bytes, |text| {
        let Ok(program) = text.parse::<Program>() else {
            return;
        };
        let wiring = Wiring::default();
        if program.check(&wiring).is_ok() {
            assert_eq!(program.to_string().parse().as_ref(), Ok(&program));
            assert!(program.schedule().is_ok());
        }
    });
}

/// Every schedule can run to its end, also if sends wait for their receiver.
fn can_run(schedule: &Schedule) {
    let costs = Costs::uniform(schedule.stages(), 1.0, 1.0, 1.0);
    let simulation = schedule.simulate(&costs);
    assert!(simulation.is_ok_and(|simulation| simulation.makespan() > 0.0));
    let wiring = Wiring::default();
    let program = Program::new(schedule, &wiring);
    let Ok(program) = program else {
        panic!("{program:?}");
    };
    assert_eq!(program.check(&wiring), Ok(()));
    assert_eq!(program.schedule().as_ref(), Ok(schedule));
}
