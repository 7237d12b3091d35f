//! Folders of sample runs.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use stovepipe_report::Report;
use stovepipe_schedule::{Costs, OneForwardOneBackward, Scheduler};
use tempfile::TempDir;

pub const SVG: &str = "http://www.w3.org/2000/svg";

/// A run as training would write it.
pub struct SampleRun {
    pub epochs: usize,
    pub stages: usize,
    /// Whether weights are averaged.
    pub averages: bool,
    /// Whether it is a language model.
    pub is_language: bool,
    pub mistakes: usize,
}

impl SampleRun {
    pub fn images(epochs: usize) -> Self {
        Self {
            epochs,
            stages: 2,
            averages: true,
            is_language: false,
            mistakes: 24,
        }
    }

    pub fn language(epochs: usize) -> Self {
        Self {
            averages: false,
            is_language: true,
            mistakes: 0,
            ..Self::images(epochs)
        }
    }

    /// Writes the folder.
    pub fn folder(&self) -> TempRun {
        let (parent, name) = (tempfile::tempdir().unwrap(), "train-1".to_owned());
        let folder = TempRun { parent, name };
        fs::create_dir(folder.path()).unwrap();
        folder.write("config.toml", self.config());
        folder.write("metrics.jsonl", self.metrics());
        folder.write("steps.jsonl", self.steps());
        folder.write("summary.json", self.summary().to_string());
        folder.write("timeline.svg", self.timeline());
        if self.is_language {
            folder.write("remark.txt", REMARK);
        }
        if self.mistakes > 0 {
            folder.write("mistakes.json", self.mistakes().to_string());
            fs::create_dir(folder.path().join("mistakes")).unwrap();
            for digit in 0..10 {
                folder.write(&format!("mistakes/{digit:02}.png"), png(digit));
            }
        }
        folder
    }

    pub fn report(&self) -> Report {
        self.folder().report()
    }

    fn config(&self) -> String {
        let (model, data) = if self.is_language {
            ("transformer-lm", "text")
        } else {
            ("amoebanet-d", "digits")
        };
        let config = CONFIG.replace("MODEL", model).replace("DATA", data);
        let config = config.replace("EPOCHS", &self.epochs.to_string());
        config.replace("STAGES", &self.stages.to_string())
    }

    fn metrics(&self) -> String {
        let line = |epoch| self.epoch(epoch).to_string() + "\n";
        (1..=self.epochs).map(line).collect()
    }

    fn steps(&self) -> String {
        let line = |step: usize| {
            let mut line = json!({
                "step": step, "epoch": step.div_ceil(23), "loss": 0.5 + 2.0 / step as f64,
                "learning_rate": 0.004, "gradient_norm": 2.0 + noise(5.0, step),
                "samples_per_second": 200.0, "memory": 300_000_000, "bubble": 0.2,
            });
            if self.is_language {
                line["tokens_per_second"] = json!(25_600);
            }
            line.to_string() + "\n"
        };
        (1..=23 * self.epochs).map(line).collect()
    }

    /// A typical epoch.
    fn epoch(&self, epoch: usize) -> Value {
        let share = epoch as f64 / self.epochs as f64;
        let noise = |seed| noise(seed, epoch);
        let loss = 0.55 + 1.9 * (-6.0 * share).exp();
        let mut line = json!({
            "epoch": epoch, "steps": 23, "updates": 23,
            "learning_rate": 0.002 * (1.0 + (std::f64::consts::PI * share).cos()),
            "train_loss": loss,
            "train_accuracy": 1.0 - 0.5 * (-7.0 * share).exp(),
            "test": self.scores(share, 0.02 * noise(1.0)),
            "samples_per_second": 200.0 + 25.0 * noise(2.0),
            "bubble": 0.21 + 0.02 * noise(3.0),
            "seconds": 7.2 + 0.4 * noise(4.0),
        });
        if self.averages {
            line["averaged"] = self.scores(share * 0.9, 0.0);
        }
        line
    }

    fn scores(&self, share: f64, noise: f64) -> Value {
        let loss = 0.15 + 2.6 * (-8.0 * share).exp() + noise.abs();
        let accuracy = 0.985 - 0.6 * (-8.0 * share).exp() - noise.abs();
        let mut scores = json!({ "loss": loss, "accuracy": accuracy, "top5": 1.0 });
        if self.is_language {
            scores["perplexity"] = json!(loss.exp());
        }
        scores
    }

    fn summary(&self) -> Value {
        let layers = ["Stem", "NormalCell", "NormalCell", "ReductionCell", "Head"];
        let stage = |stage: usize| {
            let parameters = 12_345 * (stage + 1);
            json!({ "worker": stage, "device": "cpu", "layers": layers, "parameters": parameters })
        };
        let mut summary = json!({
            "parameters": 12_345 * self.stages * (self.stages + 1) / 2,
            "stages": (0..self.stages).map(stage).collect::<Vec<_>>(),
            "epochs": self.epochs, "train_loss": 0.56,
            "test": self.scores(1.0, 0.02 * noise(1.0, self.epochs)),
            "samples_per_second": 201.4, "bubble": 0.214, "seconds": 47.7, "stopped": false,
        });
        if self.averages {
            summary["averaged"] = self.scores(0.9, 0.0);
        }
        summary
    }

    fn timeline(&self) -> String {
        let schedule = OneForwardOneBackward.schedule(self.stages, 2 * self.stages);
        let costs = Costs::uniform(self.stages, 7e-3, 6e-3, 8e-3);
        let timeline = schedule.unwrap().simulate(&costs).unwrap().timeline();
        let label = |stage| {
            let (first, last) = (5 * stage, 5 * stage + 4);
            format!("stage {stage} · layers {first}–{last} · cpu")
        };
        timeline.to_svg(&(0..self.stages).map(label).collect::<Vec<_>>())
    }

    fn mistakes(&self) -> Value {
        let entry = |index: usize| {
            let (label, said) = (index * 7 % 10, (index * 3 + 1) % 10);
            json!({
                "file": format!("test/{}", 41 * index + 3),
                "label": label.to_string(), "said": said.to_string(),
                "probability": 0.97 - 0.02 * index as f64, "loss": 4.8 - 0.15 * index as f64,
                "picture": format!("mistakes/{label:02}.png"),
            })
        };
        (0..self.mistakes).map(entry).collect()
    }
}

/// Numbers from -1 to 1 that look random.
fn noise(seed: f64, epoch: usize) -> f64 {
    (seed * 12.9898 + epoch as f64 * 78.233).sin()
}

/// A folder that is removed with this value.
pub struct TempRun {
    parent: TempDir,
    pub name: String,
}

impl TempRun {
    pub fn path(&self) -> PathBuf {
        self.parent.path().join(&self.name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), content).unwrap();
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    pub fn report(&self) -> Report {
        Report::read(&self.path()).unwrap_or_else(|error| panic!("{error}"))
    }
}

const REMARK: &str = "an interpolated 5-gram has perplexity 3.23 there
a sample, after \"tance to possess it;)
15:5 if only thou diligently hearken unto \":
Jehovah for him, and of pitcher him for his night, and said unto him, Let my lord shall take be for her with him, \
and I come near thee, and that he giveth the shekel of the sabbath-pring of his father, and did all the people.
";

const CONFIG: &str = "[data]
data = \"DATA\"

[model]
model = \"MODEL\"
layers = 3
auxiliary = false

[pipeline]
stages = STAGES
devices = [\"cpu\"]
schedule = \"1f1b\"
device-memory = []

[training]
epochs = EPOCHS
optimizer = \"adamw\"
lr = 0.004
epsilon = 0.00000001
";

/// Handwritten digits, 8×8, from the data set of digits. Each pixel is a digit of base 17, from `0` (paper)
/// to `g` (ink).
const DIGITS: [&str; 10] = [
    "005d910000dfaf5003f20b8004c008800580098004b01c7002e5ac00006da000",
    "0005fd10002egg40008ggg4006fggg10037agg40000bgg10000cgg100006ec10",
    "02fgf20008e8e8000752g500000cd000008f100001f7000004g9882002fgggd0",
    "00aga10006e6g3000545f000000ce1000003bf1000000a8000988f60009ff900",
    "001a9000009f400001g5000004g14e4004gceg500017g9000002g400000ad000",
    "00dd820005gggc0001fc000000cd7100008ggc0000049g300015ef1000agg600",
    "000bc100008g9400003400000102820005ggge2002g93d7000be7g90001aea20",
    "004fgg500069bgb000003g500003ega0007ggb30008fd000005g7000007e2000",
    "003dd30002eccb0004g85f3001deg70000bgd10001gcde1000dd9g70003dga10",
    "00da100005ge700004g8e00002egg60000149d1000000d60005859e000ddfgd0",
];

/// A digit as a PNG file.
pub fn png(digit: usize) -> Vec<u8> {
    let pixels = DIGITS[digit].chars().map(|ink| ink.to_digit(17).unwrap());
    let pixels: Vec<_> = pixels.map(|ink| (ink * 255 / 16) as u8).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 8, 8);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    bytes
}
