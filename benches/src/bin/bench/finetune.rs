//! Fine-tuning a random Llama with an adapter next to `transformers` and `peft`, in the same minutes.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench finetune --python PATH`

use std::{env, io, process::Command, time::Instant};

use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{NamedDevice, Recompute, count_parameters, device::device_facts},
    prelude::*,
    train::{TrainSettings, optimizer::StagedOptimizer},
};
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    bench_progress::BenchProgress,
    line_process::LineProcess,
    measure::{Seconds, Turn, TurnCost, compute_alone, process_status, take_turns, time},
    report::{BenchReport, ReportTable, cell},
};
use stovepipe_chat::micro_batches;
use stovepipe_decoder::{DecoderConfig, DecoderLayer, LoraConfig};

/// Fine-tuning with an adapter next to transformers and peft
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// A Python that has transformers and peft
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Leave transformers out
    #[arg(long)]
    alone: bool,
    /// The device of both sides: cpu, cuda:0
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/finetune.py");

const NOTE: &str = "\
Training steps of a random Llama with an adapter on all linear layers: forward, backward, AdamW. Ours
has two stages of a thread each, 1F1B, no recomputation, cut by measured times; transformers with peft
has one process with two threads and adds up gradients. `full`: 8 sequences of the maximum length, a
micro-batch each. `chats`: 32 sequences of unequal lengths; ours are sorted into 8 micro-batches with
little padding, theirs are 8 random batches of 4, padded. Rates count tokens without padding, and are
medians over rounds in which both took their turn. Memory is the peak of the process (VmHWM). On a GPU,
ours has one stage, and memory is what the GPU's pools have reserved.";

/// The measured model and its mini-batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    device: String,
    vocabulary: usize,
    width: usize,
    blocks: usize,
    heads: usize,
    keys: usize,
    feed_forward: usize,
    length: usize,
    rank: usize,
    /// Of the sequences of a mini-batch.
    lengths: Vec<usize>,
}

/// Sequences in a micro-batch of `transformers`.
fn theirs_at_once(job: &Job) -> usize {
    job.lengths.len() / 8
}

pub fn main(flags: Flags) -> Result<(), Failure> {
    if let Some(job) = &flags.arguments.contender {
        return serve(&serde_json::from_str(job)?);
    }
    let mut report = BenchReport::begin("finetune", &flags)?;
    report.note(NOTE);
    let device: NamedDevice = flags.device.parse()?;
    if let Some(hardware) = device_facts(&device)?.hardware {
        report.note(format!("Device: {device}, {hardware}"));
    }
    let mut table = ReportTable::new("fine-tuning a Llama with an adapter of rank 16");
    let mut progress = BenchProgress::new(2);
    for (name, job) in jobs(&flags) {
        race(&flags, name, &job, &mut table)?;
        progress.done(name);
    }
    report.table(table);
    report.save(&flags.arguments.out)
}

fn jobs(flags: &Flags) -> [(&'static str, Job); 2] {
    let pick = |usual, small| if flags.arguments.quick { small } else { usual };
    let job = Job {
        device: flags.device.clone(),
        vocabulary: pick(32_000, 50),
        width: pick(768, 24),
        blocks: pick(12, 2),
        heads: pick(12, 6),
        keys: pick(4, 2),
        feed_forward: pick(2048, 32),
        length: pick(512, 32),
        rank: pick(16, 2),
        lengths: vec![pick(512, 32); 8],
    };
    // From 20 to 500 tokens, in no order.
    let (least, most) = (pick(20, 2), pick(500, 30));
    let of = |sample: usize| least + sample * 13 % 32 * (most - least) / 31;
    let chats = Job {
        lengths: (0..32).map(of).collect(),
        ..job.clone()
    };
    [("full", job), ("chats", chats)]
}

/// What a side's process said last.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    loss: f64,
    /// KiB.
    peak: f64,
}

fn race(
    flags: &Flags,
    name: &'static str,
    job: &Job,
    table: &mut ReportTable,
) -> Result<(), Failure> {
    let mut sides = vec![("ours", ours(job)?)];
    if !flags.alone {
        sides.push(("transformers", theirs(&flags.python, job)?));
    }
    let mut said = vec![Said::default(); sides.len()];
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for ((_, process), said) in sides.iter_mut().zip(&mut said) {
        turns.push(Box::new(move || {
            let answer = process.ask()?;
            let numbers: Vec<f64> = answer.split_whitespace().flat_map(str::parse).collect();
            let [seconds, loss, peak] = numbers[..] else {
                return Err("a side failed; its error is above".into());
            };
            *said = Said { loss, peak };
            let processor = f64::NAN;
            Ok(TurnCost { seconds, processor })
        }));
    }
    let found = take_turns(&mut turns, flags.arguments.rounds(5))?;
    drop(turns);
    let tokens: usize = job.lengths.iter().map(|length| length - 1).sum();
    let seconds = |side: usize| {
        found
            .get(side)
            .map_or(Seconds::default(), |own| own.seconds.clone())
    };
    let ratio = seconds(1).over(&seconds(0));
    for (side, (name_of_side, _)) in sides.iter().enumerate() {
        let is_ours = side == 0 && found.len() > 1;
        let memory = is_ours.then(|| said[0].peak / said[1].peak);
        table.row([
            cell("job", "", 0, name),
            cell("side", "", 0, *name_of_side),
            cell(
                "tokens_per_second",
                "tokens/s",
                1,
                tokens as f64 / seconds(side).median(),
            ),
            cell("peak_mib", "peak MiB", 0, said[side].peak / 1024.0),
            cell("loss", "loss", 3, said[side].loss),
            cell(
                "over_transformers",
                "ours / theirs",
                3,
                is_ours.then(|| ratio.median()),
            ),
            cell(
                "spread_percent",
                "±%",
                1,
                is_ours.then(|| 100.0 * ratio.spread()),
            ),
            cell("of_their_memory", "of their memory", 3, memory),
        ]);
    }
    Ok(())
}

/// This program again, which trains a mini-batch for each line.
fn ours(job: &Job) -> Result<LineProcess, Failure> {
    let mut command = Command::new(env::current_exe()?);
    let command = command.args(env::args_os().skip(1)).arg("--contender");
    Ok(LineProcess::start(
        command.arg(serde_json::to_string(job)?),
    )?)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hello {
    Ready {
        parameters: usize,
        trained: usize,
        versions: String,
    },
    Missing {
        missing: String,
    },
}

fn theirs(python: &str, job: &Job) -> Result<LineProcess, Failure> {
    let mut command = Command::new(python);
    command.arg("-B").arg(SCRIPT).args(["--threads", "2"]);
    for (name, value) in [
        ("--vocabulary", job.vocabulary),
        ("--width", job.width),
        ("--blocks", job.blocks),
        ("--heads", job.heads),
        ("--keys", job.keys),
        ("--feed-forward", job.feed_forward),
        ("--length", job.length),
        ("--rank", job.rank),
        ("--micro-batch", theirs_at_once(job)),
    ] {
        command.args([name, &value.to_string()]);
    }
    command.args(["--device", &job.device]);
    command
        .arg("--lengths")
        .arg(serde_json::to_string(&job.lengths)?);
    let process = LineProcess::start(&mut command);
    let mut process = process.map_err(|error| format!("`{python}` cannot be run: {error}"))?;
    let hello = process.line()?;
    let layers = layers(job)?;
    let own = count_parameters(&layers) - job.vocabulary * job.width; // the table is counted twice
    match serde_json::from_str(&hello) {
        Ok(Hello::Ready { parameters, .. }) if parameters != own => {
            Err(format!("{own} parameters here, {parameters} in transformers").into())
        }
        Ok(Hello::Ready {
            trained, versions, ..
        }) => {
            println!("{own} parameters, of which {trained} are trained; transformers {versions}");
            Ok(process)
        }
        Ok(Hello::Missing { missing }) => Err(format!(
            "`{python}` has no transformers and peft ({missing}): install them with pip, and name \
             that Python with --python"
        )
        .into()),
        Err(_) => Err(format!("`{python}` failed; its error is above ({hello:?})").into()),
    }
}

fn layers(job: &Job) -> Result<Vec<DecoderLayer>, Failure> {
    let config = DecoderConfig {
        keys: job.keys,
        feed_forward: job.feed_forward,
        length: job.length,
        ..DecoderConfig::new(job.vocabulary, job.width, job.blocks, job.heads)
    };
    let device = Device::flex();
    let lora = LoraConfig::new(job.rank);
    Ok(lora.add_to(config.init(&device)?, &config, &device)?)
}

/// Trains a mini-batch for each line of input; prints seconds, loss and peak memory.
fn serve(job: &Job) -> Result<(), Failure> {
    let device: NamedDevice = job.device.parse()?;
    let layers = layers(job)?;
    let builder = match device.is_cpu() {
        true => {
            compute_alone()?;
            let sample = Tensor::<2, Int>::zeros([1, job.length], &Device::flex());
            Pipeline::auto(layers, vec![Device::flex(); 2], sample)?
        }
        false => Pipeline::builder(layers).devices([device.clone()]),
    };
    let builder = builder.recompute(Recompute::Never);
    let mut pipeline = builder.micro_batches(8).build()?;
    let settings = TrainSettings {
        clip: 0.0, // as the other side
        ..TrainSettings::default()
    };
    let mut optimizer = StagedOptimizer::new(&settings, pipeline.stage_layers().count());
    let objective = CrossEntropy::new().ignoring(-1);
    for line in io::stdin().lines() {
        line?;
        let (seconds, loss) = time(|| -> Result<_, Failure> {
            let began = Instant::now();
            let step = pipeline.train_step(batch(job), &objective)?;
            optimizer.step(1e-6, &mut pipeline, step.gradients, began)?;
            pipeline.sync()?;
            Ok(step.loss)
        });
        let loss = loss?;
        println!("{seconds} {loss} {}", peak(&device.device)?);
    }
    Ok(())
}

/// The sequences of the other side, in eight micro-batches.
fn batch(job: &Job) -> Batch<Tensor<2, Int>, Tensor<2, Int>> {
    let part = |group: &Vec<usize>| {
        let longest = group
            .iter()
            .map(|&sample| job.lengths[sample])
            .max()
            .unwrap_or(2)
            - 1;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for &sample in group {
            let token = |place: usize| ((7 * place + sample) % job.vocabulary) as i64;
            let own = job.lengths[sample] - 1;
            inputs.extend((0..longest).map(|place| if place < own { token(place) } else { 0 }));
            targets
                .extend((0..longest).map(|place| if place < own { token(place + 1) } else { -1 }));
        }
        let tensor = |values: Vec<i64>| {
            let data = TensorData::new(values, [group.len(), longest]);
            Tensor::from_data(data, &Device::flex())
        };
        Batch::new(tensor(inputs), tensor(targets))
    };
    let groups = micro_batches(&job.lengths, 8);
    let mut parts = groups.iter().map(part);
    let first = parts.next().unwrap_or_else(|| part(&vec![0]));
    parts.fold(first, Batch::and)
}

/// The peak memory of this process, or what it has reserved on a GPU, in KiB.
fn peak(device: &Device) -> Result<u64, Failure> {
    if let Some(usage) = device.memory_pool_usage() {
        return Ok(usage.bytes_reserved / 1024);
    }
    process_status("VmHWM")
}
