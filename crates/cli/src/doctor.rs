//! `stovepipe doctor`: whether this program works on a device, in one report.

mod differences;
mod libraries;
mod trial;

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{
        NamedDevice,
        device::{device_facts, measure_link, measure_rates},
    },
    schedule::format_bytes,
    train::{
        run::show_count,
        settings::{cores, free_memory},
    },
};

use self::{
    differences::relative_difference,
    trial::{Trial, Tried},
};
use crate::{
    error::{CliError, usage, with_sources},
    flags, output, suggest,
};

/// Of all checks together. Those that have not begun by then are left out.
const MOST_TIME: Duration = Duration::from_secs(10 * 60);
/// The models, of two families.
const FAMILIES: [&str; 2] = ["amoebanet-d", "vit"];
/// The largest difference from the CPU, relative to what the CPU computes. GPUs add in another order, and use
/// approximate functions: in f32, gradients of these models differ by 1e-6 to 1e-4. A device that rounds the
/// factors of its products may be as far away as rounded weights are on the CPU, times [`ALLOWANCE`]: for the
/// gradients of AmoebaNet-D, whose many ReLUs switch, that is a third of their length.
const TOLERANCE: f64 = 1e-2;
const ALLOWANCE: f64 = 2.0;

#[derive(Clone, Debug, Args)]
struct DoctorFlags {
    /// The device [default: the first GPU, or the CPU where there is none]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The report
    #[arg(long, value_name = "FILE", default_value = "stovepipe-doctor.txt")]
    out: PathBuf,
    /// The models to train
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = FAMILIES, default_values = FAMILIES)]
    models: Vec<String>,
    /// Leave out how fast it is
    #[arg(long)]
    quick: bool,
}

pub fn command() -> Command {
    flags::finished(DoctorFlags::augment_args(Command::new("doctor")))
        .about("Check that training works on a device, and write a report")
        .long_about(
            "Check that training works on a device: its driver and libraries, copies to and from it, and small \
             models through one and two stages, twice and next to the CPU. It starts no check after ten minutes. The \
             report has no names of users, hosts or folders: attach it when you report a problem. The exit \
             status is 0 if all is well.",
        )
}

pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = DoctorFlags::from_arg_matches(matches)?;
    let device = match &flags.device {
        Some(name) => suggest::devices(std::slice::from_ref(name))?.remove(0),
        None => {
            let offered = NamedDevice::offered();
            let gpu = offered.iter().find(|device| !device.is_cpu());
            gpu.or(offered.first())
                .cloned()
                .ok_or_else(|| usage!("there is no device"))?
        }
    };
    if device.name.contains('/') {
        return Err(usage!(
            "name a device of this process, such as cpu or cuda:0"
        ));
    }
    output::check_file(&flags.out)?;
    let mut partial = flags.out.clone().into_os_string();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let report = examine(&device, &checks(&flags), &partial);
    let verdict = match report.failed() {
        0 => "all is well".to_owned(),
        1 => "1 check FAILED".to_owned(),
        failed => format!("{failed} checks FAILED"),
    };
    let text = format!("{report}\n{verdict}\n");
    output::write(&flags.out, &text)?;
    let _ = fs::remove_file(partial); // if it could be written
    output::print(&text)?;
    Ok(match report.failed() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What was found, in order.
#[derive(Default)]
struct Report {
    lines: Vec<(String, Verdict, String)>,
    /// Where it is kept while checks go on: one of them may hang, or take the program down.
    partial: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// A fact, not a check.
    Note,
    Well,
    Failed,
    LeftOut,
}

impl Report {
    fn add(&mut self, what: impl Into<String>, verdict: Verdict, found: impl Into<String>) {
        self.lines.push((what.into(), verdict, found.into()));
        if let Some(file) = &self.partial {
            let _ = fs::write(file, format!("{self}\nnot finished\n"));
        }
    }

    fn note(&mut self, what: &str, found: impl Into<String>) {
        self.add(what, Verdict::Note, found);
    }

    fn check(&mut self, what: impl Into<String>, found: Result<String, CliError>) {
        match found {
            Ok(found) => self.add(what, Verdict::Well, found),
            Err(why) => self.add(what, Verdict::Failed, without_home(&with_sources(&why))),
        }
    }

    fn failed(&self) -> usize {
        let failed = |(_, verdict, _): &&(String, Verdict, String)| *verdict == Verdict::Failed;
        self.lines.iter().filter(failed).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = output::Table::new("check||found");
        for (what, verdict, found) in &self.lines {
            let verdict = match verdict {
                Verdict::Note => "",
                Verdict::Well => "ok",
                Verdict::Failed => "FAILED",
                Verdict::LeftOut => "left out",
            };
            table.row(vec![what.clone(), verdict.to_owned(), found.clone()]);
        }
        write!(formatter, "{table}")
    }
}

/// An error's text may have the path of a file.
fn without_home(text: &str) -> String {
    match env::var("HOME") {
        Ok(home) if home.len() > 1 => text.replace(&home, "~"),
        _ => text.to_owned(),
    }
}

fn examine(device: &NamedDevice, checks: &[Check], partial: &Path) -> Report {
    let began = Instant::now();
    let mut report = Report {
        partial: Some(partial.to_owned()),
        ..Report::default()
    };
    report.note("program", program());
    report.note("machine", machine());
    for (library, found) in libraries::of(&device.name) {
        report.note(&library, found);
    }
    let shown = show_count("examining", "check", checks.len());
    for (index, check) in checks.iter().enumerate() {
        match MOST_TIME.checked_sub(began.elapsed()) {
            Some(left) => check.run(device, left, &mut report),
            None => report.add(check.name(), Verdict::LeftOut, "the ten minutes are over"),
        }
        shown(index + 1);
    }
    if let Some(usage) = device.device.memory_pool_usage() {
        let (used, reserved) = (usage.bytes_in_use, usage.bytes_reserved);
        let [used, reserved] = [used, reserved].map(format_bytes);
        report.note(
            "memory at the end",
            format!("{used} in use, {reserved} reserved"),
        );
    }
    report
}

fn program() -> String {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("mpi", cfg!(feature = "mpi")),
        ("wgpu", cfg!(feature = "wgpu")),
    ];
    let built = features.iter().filter(|(_, is_built)| *is_built);
    let names: Vec<_> = built.map(|(name, _)| *name).collect();
    let names = match names.is_empty() {
        true => "cpu".to_owned(),
        false => format!("cpu, {}", names.join(", ")),
    };
    format!("stovepipe {}, built for {names}", env!("CARGO_PKG_VERSION"))
}

fn machine() -> String {
    let (system, processor) = (env::consts::OS, env::consts::ARCH);
    let memory = free_memory().map_or_else(String::new, |free| {
        format!(", {} of memory free", format_bytes(free))
    });
    format!("{system} on {processor}, {} cores{memory}", cores())
}

enum Check {
    Device,
    Copies,
    Training(String),
    Speed(String),
}

/// What is to be checked, in order.
fn checks(flags: &DoctorFlags) -> Vec<Check> {
    let mut checks = vec![Check::Device, Check::Copies];
    let models = || flags.models.iter().cloned();
    checks.extend(models().map(Check::Training));
    if !flags.quick {
        checks.extend(models().map(Check::Speed));
    }
    checks
}

impl Check {
    fn name(&self) -> String {
        match self {
            Self::Device => "device".to_owned(),
            Self::Copies => "copies".to_owned(),
            Self::Training(model) => format!("{model}: training"),
            Self::Speed(model) => format!("{model}: speed"),
        }
    }

    fn run(&self, device: &NamedDevice, left: Duration, report: &mut Report) {
        match self {
            Self::Device => report.check(self.name(), facts(device)),
            Self::Copies => report.check(self.name(), copies(device)),
            Self::Training(model) => compare(model, (device, left), report),
            Self::Speed(model) => report.check(self.name(), speed(model, (device, left))),
        }
    }
}

fn facts(device: &NamedDevice) -> Result<String, CliError> {
    let (facts, rates) = (device_facts(device)?, measure_rates(device)?);
    let mut found = device.name.clone();
    if let Some(hardware) = facts.hardware {
        found += &format!(", {hardware}");
    }
    if let Some(memory) = facts.memory {
        found += &format!(", {}", format_bytes(memory));
    }
    if facts.software {
        found += ", in software";
    }
    if facts.rounds_products {
        found += ", products in f32 may round factors to 11 bits (TF32)";
    }
    for rate in rates.products {
        let speed = output::decimals(rate.rate / 1e9, 0);
        found += &format!(", products in {} {speed} GFLOP/s", rate.dtype);
    }
    Ok(found)
}

fn copies(device: &NamedDevice) -> Result<String, CliError> {
    let host = Device::flex();
    if device.is_cpu() {
        return Ok("none: the device is the CPU".to_owned());
    }
    trial::round_trip(&device.device)?;
    let rate = |from: &Device, to: &Device| {
        let link = measure_link(from, to)?;
        let rate = format_bytes(link.bandwidth as u64);
        Ok::<_, CliError>(format!("{rate}/s, {}", output::seconds(link.latency)))
    };
    let there = rate(&host, &device.device)?;
    let back = rate(&device.device, &host)?;
    Ok(format!(
        "values are the same; to the device {there}; back {back}"
    ))
}

/// Trains a small model on the CPU and in several ways with the device.
fn compare(family: &str, (device, left): (&NamedDevice, Duration), report: &mut Report) {
    let began = Instant::now();
    let cpu = NamedDevice::from(Device::flex());
    let try_on = |devices: &[&NamedDevice]| {
        let limit = left.saturating_sub(began.elapsed());
        Trial::small(family, devices, limit).run()
    };
    let expected = match try_on(&[&cpu]) {
        Ok(expected) => expected,
        Err(why) => return report.check(format!("{family}: on the CPU"), Err(why)),
    };
    let limits = match limits(family, device, &expected) {
        Ok(limits) => limits,
        Err(why) => return report.check(format!("{family}: rounded, on the CPU"), Err(why)),
    };
    let mut first: Option<Tried> = None;
    let mut ways = vec![
        ("alone", vec![device]),
        ("again", vec![device]),
        ("two stages", vec![device, device]),
    ];
    if !device.is_cpu() {
        ways.push(("with the CPU", vec![device, &cpu]));
    }
    for (way, devices) in ways {
        let what = format!("{family}: {way}");
        let tried = match try_on(&devices) {
            Ok(tried) => tried,
            Err(why) => {
                report.check(what, Err(why));
                continue;
            }
        };
        report.check(
            what,
            agreement(&tried, &expected, limits, (way, first.as_ref())),
        );
        first.get_or_insert(tried);
    }
}

/// How far gradients and losses may be from the CPU's.
fn limits(family: &str, device: &NamedDevice, expected: &Tried) -> Result<[f64; 2], CliError> {
    if !device_facts(device)?.rounds_products {
        return Ok([TOLERANCE; 2]);
    }
    let cpu = NamedDevice::from(Device::flex());
    let rounded = Trial::small(family, &[&cpu], MOST_TIME).rounded().run()?;
    Ok(differences(&rounded, expected).map(|own| TOLERANCE.max(ALLOWANCE * own)))
}

/// Of gradients and losses.
fn differences(tried: &Tried, expected: &Tried) -> [f64; 2] {
    [
        relative_difference(&tried.gradients, &expected.gradients),
        relative_difference(&tried.losses, &expected.losses),
    ]
}

/// How far a training is from the CPU's, and whether it repeats itself.
fn agreement(
    tried: &Tried,
    expected: &Tried,
    limits: [f64; 2],
    (way, first): (&str, Option<&Tried>),
) -> Result<String, CliError> {
    let [gradient, losses] = differences(tried, expected);
    let mut found = format!("from the CPU: gradients {gradient:.1e}, losses {losses:.1e}");
    if way == "again"
        && let Some(first) = first
    {
        found += match first.losses == tried.losses && first.gradients == tried.gradients {
            true => "; the same bits as the first time",
            false => "; other bits than the first time",
        };
    }
    let steps = tried.losses.len();
    found += &format!("; {steps} steps in {}", output::seconds(tried.seconds));
    let [of_gradients, of_losses] = limits;
    if of_gradients > TOLERANCE || of_losses > TOLERANCE {
        found += &format!("; rounded products allow {of_gradients:.0e} and {of_losses:.0e}");
    }
    match gradient <= of_gradients && losses <= of_losses {
        true => Ok(found),
        false => Err(usage!(
            "{found}; more than {of_gradients:.0e} and {of_losses:.0e} is wrong"
        )),
    }
}

fn speed(family: &str, (device, left): (&NamedDevice, Duration)) -> Result<String, CliError> {
    let tried = Trial::large(family, device, left).run()?;
    let rate = tried.samples_per_second;
    Ok(format!(
        "{} samples/s of the usual size",
        output::decimals(rate, 1)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tried(gradient: f64, loss: f64) -> Tried {
        Tried {
            gradients: vec![1.0, gradient],
            losses: vec![2.0, loss],
            seconds: 1.0,
            samples_per_second: 0.0,
        }
    }

    #[test]
    fn a_device_that_computes_something_else_fails() {
        let right = tried(3.0, 1.5);
        let limits = [TOLERANCE; 2];
        let check = |own: &Tried| agreement(own, &right, limits, ("again", Some(&right)));
        let same = check(&right).unwrap();
        assert!(same.contains("the same bits as the first time"), "{same}");
        let near = check(&tried(3.001, 1.5)).unwrap();
        assert!(near.contains("other bits than the first time"), "{near}");
        for wrong in [tried(3.1, 1.5), tried(3.0, 1.6), tried(f64::NAN, 1.5)] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(
                error.contains("more than 1e-2 and 1e-2 is wrong"),
                "{error}"
            );
        }
        let lenient = agreement(&tried(3.1, 1.6), &right, [0.1, 0.1], ("alone", None));
        assert!(lenient.is_ok(), "{lenient:?}");
        let mut report = Report::default();
        report.note("program", "a note");
        report.check("alone", check(&tried(3.1, 1.5)));
        report.check("again", check(&right));
        report.add("speed", Verdict::LeftOut, "no time");
        assert_eq!(report.failed(), 1);
        let text = report.to_string();
        assert!(text.contains("alone    FAILED    from the CPU"), "{text}");
    }

    #[test]
    fn an_error_in_the_report_does_not_name_the_user() {
        let home = env::var("HOME").unwrap();
        assert_eq!(
            without_home(&format!("{home}/a: no such file")),
            "~/a: no such file"
        );
    }
}
