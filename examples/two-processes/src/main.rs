//! A pipeline over two processes: the first half of the layers is in one, the second half in the other.
//!
//! ```sh
//! cargo build --release -p two-processes --features mpi
//! mpirun -n 2 target/release/two-processes
//! ```
//!
//! Without `--features mpi`, two threads take the place of the processes. The losses are those of one process.

use std::error::Error;

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    module::Module,
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
    tensor::{Device, Int, Tensor},
};
use stovepipe::{pipeline::NamedDevice, prelude::*};
use stovepipe_comm::Communicator;
use stovepipe_digits::{DigitBatcher, Digits};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }
}

fn layers() -> Vec<Dense> {
    let widths = [3 * 32 * 32, 64, 64, 64, 10];
    let layer = |pair: &[usize]| Dense {
        linear: LinearConfig::new(pair[0], pair[1]).init(&Device::flex()),
    };
    widths.windows(2).map(layer).collect()
}

/// The losses of 20 steps. Without a communicator, all stages are in this process.
fn train(communicator: Option<Communicator>) -> Result<Vec<f64>, Failure> {
    let names = match &communicator {
        Some(_) => ["0/cpu", "1/cpu"], // or 0/cuda:0 and 1/cuda:0
        None => ["cpu", "cpu"],
    };
    let [first, second] = names.map(str::parse::<NamedDevice>);
    let mut builder = Pipeline::builder(layers()).devices([first?, second?]);
    if let Some(communicator) = communicator {
        builder = builder.communicator(communicator);
    }
    let mut pipeline = builder.build()?;
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..20 {
        let step = pipeline.train_step(batch(step)?, &CrossEntropy::new())?;
        // Each process has the gradients of its own layers, and updates these.
        pipeline = optimizer.step(0.1, pipeline, step.gradients);
        losses.push(step.loss);
    }
    Ok(losses)
}

/// All processes read the same mini-batch.
fn batch(step: usize) -> Result<(Tensor<2>, Tensor<1, Int>), Failure> {
    let digits = Digits::train()?;
    let items = (32 * step..32 * (step + 1)).map(|index| digits.get(index));
    let items = items.collect::<Result<_, _>>()?;
    let (images, labels) = DigitBatcher.batch(items, &Device::flex());
    Ok((images.flatten(1, 3), labels))
}

#[cfg(feature = "mpi")]
fn main() -> Result<(), Failure> {
    use std::time::Duration;

    let communicator = stovepipe_comm_mpi::init(Some(Duration::from_secs(60)))?;
    if communicator.size() != 2 {
        return Err("start two processes: mpirun -n 2 target/release/two-processes".into());
    }
    let is_first = communicator.rank() == 0;
    let losses = train(Some(communicator))?;
    if is_first {
        println!("{losses:?}");
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
fn main() -> Result<(), Failure> {
    for losses in in_threads()? {
        println!("{losses:?}");
    }
    Ok(())
}

/// The losses that each of two ranks sees, which are threads.
#[cfg(any(test, not(feature = "mpi")))]
fn in_threads() -> Result<Vec<Vec<f64>>, Failure> {
    use std::thread;

    let ranks = stovepipe_comm::local(2, None)?.into_iter();
    let ranks: Vec<_> = ranks
        .map(|rank| thread::spawn(|| train(Some(rank))))
        .collect();
    let ended = ranks.into_iter().map(|rank| rank.join());
    ended
        .map(|losses| losses.unwrap_or_else(|_| Err("a rank panicked".into())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_have_the_losses_of_one() -> Result<(), Failure> {
        let expected = train(None)?;
        assert!(expected[19] < expected[0]);
        assert_eq!(in_threads()?, [expected.clone(), expected]);
        Ok(())
    }

    /// The program itself, under mpirun.
    #[test]
    #[cfg(feature = "mpi")]
    fn two_processes_have_the_losses_of_one() -> Result<(), Failure> {
        let mut mpirun = stovepipe_comm_mpi::mpirun(2)?;
        // CI is root.
        mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        mpirun.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let program = std::env::current_exe()?;
        let program = program.parent().and_then(std::path::Path::parent);
        let program = program.ok_or("no folder")?.join("two-processes");
        let output = mpirun.arg(program).output()?;
        assert!(output.status.success(), "{output:?}");
        let expected = format!("{:?}\n", train(None)?);
        assert_eq!(String::from_utf8(output.stdout)?, expected);
        Ok(())
    }
}
