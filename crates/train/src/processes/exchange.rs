use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stovepipe_comm::Communicator;
use stovepipe_pipeline::error::ProcessError;

use super::group::Processes;

/// The last byte of an answer: whether the others are a value, or say why there is none.
const ANSWER: u8 = 0;
const FAILURE: u8 = 1;

/// Processes ask each other for values by their index, in rounds in which all take part.
///
/// In a round, each may ask one question. It is answered before the next round. The rounds end when
/// nobody asks.
#[derive(Clone)]
pub(crate) struct Exchange(Option<Arc<Communicator>>);

#[derive(Serialize, Deserialize)]
struct Question {
    /// The rank that is asked.
    of: usize,
    index: usize,
}

impl Exchange {
    pub(crate) fn new(processes: &Processes) -> Self {
        Self(processes.communicator().cloned())
    }

    /// Does what may [`ask`](Self::ask), while the others do the same or [`serve`](Self::serve).
    pub(crate) fn asking<R>(&self, work: impl FnOnce() -> R) -> Result<R, ProcessError> {
        let done = work();
        self.serve(|_| Err("nothing is served here".to_owned()))?;
        Ok(done)
    }

    /// Answers until nobody asks.
    pub(crate) fn serve(
        &self,
        mut answer: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), ProcessError> {
        let Some(comm) = &self.0 else {
            return Ok(());
        };
        while round(comm, None, &mut answer)?.is_some() {}
        Ok(())
    }

    /// A process's answer.
    pub(crate) fn ask(&self, of: usize, index: usize) -> Result<Vec<u8>, String> {
        let comm = self.0.as_ref().ok_or("there is no other process")?;
        let question = Question { of, index };
        let nothing = &mut |_: usize| Err("nothing is served here".to_owned());
        let answers = round(comm, Some(question), nothing).map_err(|error| error.to_string())?;
        let mut answer = answers.unwrap_or_default().swap_remove(of);
        match answer.pop() {
            Some(ANSWER) => Ok(answer),
            _ => Err(String::from_utf8_lossy(&answer).into_owned()),
        }
    }
}

/// Asks, and answers. Returns the answers to this process by rank, or `None` if nobody asked.
fn round(
    comm: &Arc<Communicator>,
    own: Option<Question>,
    answer: &mut dyn FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<Option<Vec<Vec<u8>>>, ProcessError> {
    let questions = Processes::new(Some(comm.clone())).gather(own)?;
    if questions.iter().all(Option::is_none) {
        return Ok(None);
    }
    let own = comm.rank();
    let reply = |question: Option<Question>| match question.filter(|question| question.of == own) {
        None => Vec::new(),
        Some(question) => {
            let (mut bytes, kind) = match answer(question.index) {
                Ok(bytes) => (bytes, ANSWER),
                Err(reason) => (reason.into_bytes(), FAILURE),
            };
            // At the end, so that the bytes need not move.
            bytes.push(kind);
            bytes
        }
    };
    let answers = questions.into_iter().map(reply).collect();
    Ok(Some(comm.all_to_all(answers)?))
}
