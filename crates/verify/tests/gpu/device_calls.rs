//! What a step asks of the devices: reads, copies, uploads and launches, counted by thread.
//!
//! `burn-cubecl`'s feature `tracing` makes a span of each call on floating-point tensors, and wgpu logs what it does
//! for the driver: so all reads are counted.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use burn::{
    module::Module,
    nn::{BatchNorm, Linear},
    tensor::Tensor,
};
use stovepipe_pipeline::{KeyedRng, NamedDevice, Recompute, layer, nn::Dropout};
use stovepipe_schedule::OneForwardOneBackward;
use stovepipe_train::{TrainSettings, optimizer::StagedOptimizer};
use tracing::{
    Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use crate::{
    beside_cpu::two_devices,
    models::{SQUARED, builder, in_own_process, linear, norm, vectors},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    /// The host waits for numbers of a device.
    Read,
    Upload,
    /// From a device to another.
    Copy,
    Launch,
    /// wgpu maps a buffer: a read, or the first half of a copy.
    Mapped,
}

/// Calls and bytes, by the thread that called.
type Counts = BTreeMap<(Call, String), [usize; 2]>;

/// Counts what happens in this process.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<Counts>>);

impl Counter {
    fn installed() -> Self {
        let counter = Self::default();
        tracing::subscriber::set_global_default(counter.clone()).unwrap();
        log::set_boxed_logger(Box::new(counter.clone())).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        counter
    }

    fn add(&self, call: Call, bytes: usize) {
        let thread = thread::current();
        let name = thread
            .name()
            .unwrap_or("a thread without a name")
            .to_owned();
        let mut counts = self.0.lock().unwrap();
        let [calls, all] = counts.entry((call, name)).or_default();
        (*calls, *all) = (*calls + 1, *all + bytes);
    }

    /// What was called since the last time.
    fn take(&self) -> Counts {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        called(metadata).is_some()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        match called(span.metadata()) {
            Some(Call::Copy) if fields.from == fields.to => {}
            Some(call) => self.add(call, fields.bytes),
            None => {}
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What a span stands for: a call of the backend that the engine uses, and not what that one calls in turn.
fn called(metadata: &Metadata<'_>) -> Option<Call> {
    let is_outer = metadata.target().starts_with("burn_fusion");
    match metadata.name() {
        "float_into_data" if is_outer => Some(Call::Read),
        "float_from_data" if is_outer => Some(Call::Upload),
        "float_to_device" if is_outer => Some(Call::Copy),
        "launch_inner" => Some(Call::Launch),
        _ => None,
    }
}

/// What a span tells.
#[derive(Default)]
struct Fields {
    /// Of a tensor of 32-bit numbers.
    bytes: usize,
    from: String,
    to: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "shape" => {
                let sizes = text.split(|letter: char| !letter.is_ascii_digit());
                let sizes = sizes.filter_map(|size| size.parse::<usize>().ok());
                self.bytes = sizes.product::<usize>() * size_of::<f32>();
            }
            "from" => self.from = text,
            "device_dst" => self.to = text,
            _ => {}
        }
    }
}

impl log::Log for Counter {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("wgpu_core")
    }

    fn log(&self, record: &log::Record<'_>) {
        if !log::Log::enabled(self, record.metadata()) {
            return;
        }
        if record.args().to_string().starts_with("Buffer::map_async") {
            self.add(Call::Mapped, 0);
        }
    }

    fn flush(&self) {}
}

/// A linear layer, a norm with running statistics, and dropout.
#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    /// Whether a pass reads a number, which no layer should do.
    reads: bool,
}

#[layer]
impl Noisy {
    fn forward(&self, x: Tensor<2>, rng: &mut KeyedRng) -> Tensor<2> {
        if self.reads {
            let _ = x.clone().sum().into_scalar::<f32>();
        }
        let shape = x.dims();
        let x: Tensor<3> = self.linear.forward(x).unsqueeze_dim(2);
        self.dropout
            .forward(self.norm.forward(x).reshape(shape), rng)
    }
}

const WIDTH: usize = 4;
const SAMPLES: usize = 8;
const MICRO_BATCHES: usize = 4;

/// Of all threads whose name begins so.
fn sum(counts: &Counts, call: Call, thread: &str) -> [usize; 2] {
    let own = |((own, name), _): &(&(Call, String), &[usize; 2])| {
        *own == call && name.starts_with(thread)
    };
    let counts = counts.iter().filter(own);
    counts.fold([0, 0], |[calls, bytes], (_, [more_calls, more_bytes])| {
        [calls + more_calls, bytes + more_bytes]
    })
}

fn table(counts: &Counts) -> String {
    let mut text = String::new();
    for ((call, thread), [calls, bytes]) in counts {
        writeln!(text, "{call:?} by {thread}: {calls}, {bytes} bytes").unwrap();
    }
    text
}

/// The calls of a step of two stages, and those of its update, once all is compiled and known.
fn calls(counter: &Counter, devices: &[NamedDevice; 2], reads: bool) -> [Counts; 2] {
    let layer = || Noisy {
        linear: linear(WIDTH, WIDTH),
        norm: norm(WIDTH),
        dropout: Dropout::new(0.5),
        reads,
    };
    let layers = vec![layer(), layer(), layer()];
    let recompute = Recompute::ExceptLast;
    let builder = builder(layers, 2, OneForwardOneBackward, MICRO_BATCHES, recompute);
    let mut pipeline = builder.devices(devices.clone()).build().unwrap();
    pipeline.move_to_workers().unwrap();
    let mut optimizer = StagedOptimizer::new(&TrainSettings::default(), 2);
    let mut step = || {
        let batch = (vectors(SAMPLES, WIDTH), vectors(SAMPLES, WIDTH));
        drop(counter.take());
        let step = pipeline.train_step(batch, &SQUARED).unwrap();
        let of_step = counter.take();
        let updated = optimizer.step(0.01, &mut pipeline, step.gradients, Instant::now());
        assert_eq!(updated.unwrap().len(), 2);
        let of_update = counter.take();
        pipeline.sync().unwrap();
        [of_step, of_update]
    };
    for _ in 0..2 {
        step();
    }
    step()
}

/// Workers read once at the end of a step and once for the norm of gradients; all else that the host waits for is on
/// the threads of copies. Only inputs and targets are uploaded, each once, though passes are repeated.
#[test]
fn a_step_reads_its_devices_once() {
    let Some(devices) = two_devices() else {
        return;
    };
    const TEST: &str = "device_calls::a_step_reads_its_devices_once";
    in_own_process(TEST, || -> Result<(), std::convert::Infallible> {
        let counter = Counter::installed();
        let [step, update] = calls(&counter, &devices, false);
        let text = format!("step:\n{}update:\n{}", table(&step), table(&update));
        let [all_reads, of_one, of_other, of_transfers] = ["", "worker-0", "worker-1", "transfer-"]
            .map(|thread| sum(&step, Call::Read, thread)[0]);
        // A message each way, of whose copy one number is read.
        let messages = 2 * MICRO_BATCHES;
        assert_eq!([of_one, of_other, of_transfers], [1, 1, messages], "{text}");
        assert_eq!(all_reads, 2 + messages, "{text}");
        let [copies, of_transfers] =
            ["", "transfer-"].map(|thread| sum(&step, Call::Copy, thread)[0]);
        assert_eq!([copies, of_transfers], [messages; 2], "{text}");
        let [_, uploaded] = sum(&step, Call::Upload, "");
        assert_eq!(uploaded, 2 * SAMPLES * WIDTH * size_of::<f32>(), "{text}");
        assert_eq!(
            sum(&step, Call::Mapped, "")[0],
            all_reads + copies,
            "{text}"
        );

        let [reads, copies, uploads] =
            [Call::Read, Call::Copy, Call::Upload].map(|call| sum(&update, call, "")[0]);
        assert_eq!([reads, copies, uploads], [2, 0, 0], "{text}");
        assert_eq!(sum(&update, Call::Mapped, "")[0], 2, "{text}");
        for counts in [&step, &update] {
            assert!(sum(counts, Call::Launch, "")[0] > 0, "{text}");
        }

        // A layer that reads in each pass is seen.
        let [step, _] = calls(&counter, &devices, true);
        let [of_workers, _] = sum(&step, Call::Read, "worker-");
        let passes = 3 * MICRO_BATCHES;
        assert!(of_workers >= 2 + passes, "{}", table(&step));
        Ok(())
    })
    .unwrap_or_else(|never| match never {});
}
