//! A table of all sides, printed and saved.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use crate::{
    Flags, RANKS, SIZES,
    failure::Failure,
    machine::{HostInfo, date},
    side::Side,
};

const NOTE: &str = "\
All-reduce (sum) of one tensor of f32. GB/s: bytes of the tensor over the time until all ranks have the sum;
the median over rounds in which all sides took their turn, each in processes of its own on this machine.
threads / best: our ring between threads over the better of gloo and MPI_Allreduce; ring / MPI: our ring
over MPI over MPI_Allreduce; medians of the rounds' ratios, ± half the distance between their quartiles.
group by MPI: our group, in which MPI_Iallreduce adds up. gloo and our ring work in place; MPI has a second
buffer for the sum.";

pub struct Report {
    head: Value,
    sides: Vec<Side>,
    /// By ranks, size and side: GB/s of each round.
    speeds: BTreeMap<(usize, usize, Side), Vec<f64>>,
}

impl Report {
    pub fn begin(flags: &Flags, sides: &[Side]) -> Self {
        let device = "cpu".to_owned();
        let machine = HostInfo {
            device,
            ..HostInfo::this()
        };
        let (cpu, threads, date) = (&machine.cpu, machine.threads, date());
        println!(
            "allreduce: {cpu}, {threads} threads, load {:?}, {date}\n\n{NOTE}\n",
            machine.load
        );
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        Self {
            head: json!({
                "bench": "allreduce", "date": date, "command": command, "machine": machine,
                "settings": flags, "notes": [NOTE],
            }),
            sides: sides.to_vec(),
            speeds: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, ranks: usize, side: Side, seconds: &[f64]) {
        for (size, seconds) in SIZES.into_iter().zip(seconds) {
            let speeds = self.speeds.entry((ranks, size, side)).or_default();
            speeds.push(size as f64 / seconds / 1e9);
        }
    }

    /// Prints the table and saves it.
    pub fn finish(mut self, flags: &Flags) -> Result<(), Failure> {
        print!("ranks        KiB");
        self.sides
            .iter()
            .for_each(|side| print!("  {:>13}", side.name()));
        println!("  threads / best     ±  ring / MPI     ±");
        let mut rows = Vec::new();
        for ranks in RANKS {
            for size in flags.sizes() {
                rows.push(self.row(ranks, *size));
            }
        }
        self.head["rows"] = rows.into();
        fs::create_dir_all(&flags.out)?;
        let path = flags.out.join("allreduce.json");
        fs::write(&path, serde_json::to_string_pretty(&self.head)? + "\n")?;
        println!("\nsaved in {}", path.display());
        Ok(())
    }

    fn row(&self, ranks: usize, size: usize) -> Value {
        let of = |side| self.speeds.get(&(ranks, size, side));
        print!("{ranks:5} {:10}", size >> 10);
        let mut row = json!({ "ranks": ranks, "bytes": size });
        for side in &self.sides {
            let speeds = of(*side).cloned().unwrap_or_default();
            print!("  {:13.3}", quantile(&speeds, 0.5));
            row[side.name()] = json!({
                "gb_per_s": quantile(&speeds, 0.5),
                "least": quantile(&speeds, 0.0),
                "most": quantile(&speeds, 1.0),
            });
        }
        let best = |round: usize| {
            let peers = [Side::Gloo, Side::Mpi].into_iter().filter_map(of);
            peers.map(|speeds| speeds[round]).reduce(f64::max)
        };
        let mpi = |round: usize| of(Side::Mpi).map(|speeds| speeds[round]);
        self.ratio(&mut row, "threads / best", of(Side::Threads), &best);
        self.ratio(&mut row, "ring / MPI", of(Side::Ring), &mpi);
        println!();
        row
    }

    /// The median of a side's speeds over those of another in the same round.
    fn ratio(
        &self,
        row: &mut Value,
        name: &str,
        side: Option<&Vec<f64>>,
        other: &dyn Fn(usize) -> Option<f64>,
    ) {
        let rounds = side.into_iter().flatten().enumerate();
        let ratios = rounds.filter_map(|(round, speed)| Some(speed / other(round)?));
        let ratios: Vec<_> = ratios.collect();
        let spread = (quantile(&ratios, 0.75) - quantile(&ratios, 0.25)) / 2.0;
        let width = name.len();
        print!("  {:width$.2}  {spread:4.2}", quantile(&ratios, 0.5));
        row[name] = json!({ "median": quantile(&ratios, 0.5), "spread": spread });
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share * last as f64;
    let below = place.floor() as usize;
    sorted[below] + place.fract() * (sorted[last.min(below + 1)] - sorted[below])
}
