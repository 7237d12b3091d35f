//! Runs in several processes: without MPI an error that says what to do, with it the files of one process.

use crate::running::{Here, check_contains};

/// What starts a job is an error without MPI, and so is a job of others.
#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_it_says_how_to_build() {
    let here = Here::new();
    let said = here.refuse(
        "train --processes 2",
        "--processes: this program was built without MPI",
    );
    check_contains(&said, &["--features mpi", "openmpi-bin"]);
    let mut command = here.typed("train");
    command.env("OMPI_COMM_WORLD_SIZE", "2");
    let said = crate::running::check_refused(command, "Open MPI's mpirun started this program");
    check_contains(&said, &["--features mpi"]);
    assert!(here.is_empty());
    let mut command = here.typed("train");
    command.env("SLURM_STEP_NUM_TASKS", "2");
    crate::running::check_refused(
        command,
        "srun started this program, which was built without MPI",
    );
    // A job of one process needs none.
    let mut command = here.typed("train --dry-run");
    command.env("OMPI_COMM_WORLD_SIZE", "1");
    crate::running::succeeds(command);
}

#[cfg(feature = "mpi")]
mod under_mpirun {
    use std::{
        env, fs,
        path::Path,
        process::{Command, Output, Stdio},
        thread,
        time::{Duration, Instant, SystemTime},
    };

    use safetensors::{SafeTensors, tensor::TensorView};
    use stovepipe::plan::Machine;

    use super::{Here, check_contains};
    use crate::{
        resume::{results, small},
        running::check_lacks,
    };

    /// How often a random process is killed, and how often another fault is made; more for a longer test.
    const KILLS: &str = "STOVEPIPE_KILLS";
    const FAULTS: &str = "STOVEPIPE_FAULTS";
    /// Longer than anything here takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn count(variable: &str, usual: usize) -> usize {
        env::var(variable).map_or(usual, |count| count.parse().unwrap())
    }

    /// As root, as CI is.
    fn as_root(mut command: Command) -> Command {
        for allow in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            command.env(allow, "1");
        }
        command
    }

    /// The program with `--processes`.
    fn started(here: &Here, processes: usize, line: &str) -> Command {
        as_root(here.typed(&format!("{line} --processes {processes}")))
    }

    /// The program under a plain mpirun.
    fn mpirun(here: &Here, processes: usize, line: &str) -> Command {
        let mut program = here.typed(line);
        let mut command = stovepipe_comm_mpi::mpirun(processes).unwrap();
        command.arg(program.get_program()).args(program.get_args());
        command.current_dir(here.path());
        let variables: Vec<_> = program
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        for (name, value) in variables {
            command.env(name, value.unwrap_or_default());
        }
        program.stdin(Stdio::null());
        as_root(command)
    }

    fn said(output: &Output) -> String {
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    }

    fn succeeds(mut command: Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// Processes that have this folder in their arguments, but for the launchers.
    fn ranks(folder: &Path) -> Vec<u32> {
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let Ok(number) = process.file_name().to_string_lossy().parse() else {
                continue;
            };
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let folder = folder.to_string_lossy();
            let program = env!("CARGO_BIN_EXE_stovepipe");
            if line.starts_with(program) && line.contains(&*folder) && !line.contains("--processes")
            {
                found.push(number);
            }
        }
        found.sort_unstable();
        found
    }

    fn signal(name: &str, process: u32) {
        let _ = Command::new("kill")
            .args([name, &process.to_string()])
            .status();
    }

    /// Waits for a job, in which `act` makes a fault as soon as there are so many ranks and something else is true.
    fn with_fault(
        mut command: Command,
        (folder, size): (&Path, usize),
        is_time: impl Fn() -> bool,
        act: impl FnOnce(&[u32], u32),
    ) -> Output {
        let mut job = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let began = Instant::now();
        while job.try_wait().unwrap().is_none() && (ranks(folder).len() < size || !is_time()) {
            assert!(began.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(5));
        }
        let own = ranks(folder);
        if own.len() == size {
            act(&own, job.id());
        }
        let pid = job.id();
        let watch = thread::spawn(move || job.wait_with_output().unwrap());
        let began = Instant::now();
        while !watch.is_finished() {
            if began.elapsed() > PATIENCE {
                ranks(folder).iter().for_each(|rank| signal("-KILL", *rank));
                signal("-KILL", pid);
                let output = watch.join().unwrap();
                panic!("the job hangs: {}", said(&output));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let output = watch.join().unwrap();
        let began = Instant::now();
        while !ranks(folder).is_empty() {
            assert!(
                began.elapsed() < PATIENCE,
                "a process is left: {}",
                said(&output)
            );
            thread::sleep(Duration::from_millis(10));
        }
        output
    }

    fn random(below: u64) -> u64 {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        u64::from(now.subsec_micros()) % below
    }

    /// Under any number of processes, however they are started.
    #[test]
    fn the_files_are_those_of_one_process() {
        let here = Here::new();
        here.run(&small("--stages 4 --out one"));
        let two = succeeds(started(&here, 2, &small("--stages 4 --out two")));
        check_contains(
            &two,
            &[
                "mpirun -n 2 ",
                "stage 3 on 1/cpu",
                "model, metrics and timeline in two",
            ],
        );
        let line = small("--out four --devices 3/cpu,0/cpu,2/cpu,1/cpu --stages 4");
        succeeds(mpirun(&here, 4, &line));
        for other in ["two", "four"] {
            assert!(
                results(&here.join("one")) == results(&here.join(other)),
                "{other}"
            );
            let names = |run: &str| {
                let files = fs::read_dir(here.join(run)).unwrap();
                let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
                names.sort();
                names
            };
            assert_eq!(names("one"), names(other));
            for name in [
                "best.safetensors",
                "mistakes.json",
                "classes.txt",
                "checkpoints/epoch-0002-batch-0000000/optimizer-00003-of-00004.safetensors",
            ] {
                let file = |run: &str| here.bytes(&format!("{run}/{name}"));
                assert!(file("one") == file(other), "{other}: {name}");
            }
        }
        // Evaluation too.
        let one = here.succeed("eval one");
        let four = succeeds(mpirun(&here, 3, "eval one --stages 3"));
        assert!(four.contains(one.lines().last().unwrap()), "{four}");
    }

    /// Replicas in processes of their own, or in parts of these.
    #[test]
    fn the_files_of_replicas_are_those_of_one_process() {
        let here = Here::new();
        let line = |out: &str| {
            small(&format!(
                "--stages 2 --replicas 2 --bucket-mib 1 --check-replicas 1 --out {out}"
            ))
        };
        here.run(&line("one"));
        let two = succeeds(started(&here, 2, &line("two")));
        check_contains(&two, &["mpirun -n 2 "]);
        succeeds(mpirun(&here, 4, &line("four")));
        // A stage in each process, with its replicas; their shares are of no account here.
        let placed = line("apart --devices 0/cpu,1/cpu,0/cpu,1/cpu --shares 1,1");
        succeeds(mpirun(&here, 2, &placed));
        for other in ["two", "four", "apart"] {
            let [one, other] = ["one", other].map(|run| results(&here.join(run)));
            assert!(one == other);
        }
        let config = fs::read_to_string(here.join("two/config.toml")).unwrap();
        for device in ["\"0/cpu\"", "\"1/cpu\""] {
            assert_eq!(config.matches(device).count(), 2, "{config}");
        }
        // On with other replicas, in one process.
        here.succeed("train --resume --replicas 1 --epochs 3 --out two");
    }

    /// MPI adds up in an order of its own: replicas stay equal, and near those of the ring.
    #[test]
    fn mpis_all_reduce_trains_as_the_ring_does() {
        let here = Here::new();
        for (size, shape) in [
            (2, "--stages 1 --replicas 2"),
            (3, "--stages 1 --replicas 3"),
            (4, "--stages 2 --replicas 2"),
        ] {
            let line = |by: &str| {
                small(&format!(
                    "{shape} --optimizer sgd --max-steps 3 --check-replicas 1 --bucket-mib 1 \
                     --all-reduce {by} --out {by}-{size}"
                ))
            };
            let runs = ["ring", "mpi"].map(|by| {
                succeeds(started(&here, size, &line(by)));
                let config = here.read(&format!("{by}-{size}/config.toml"));
                check_contains(&config, &[&format!("all-reduce = \"{by}\"")]);
                here.bytes(&format!("{by}-{size}/model.safetensors"))
            });
            let [ring, mpi] = runs
                .each_ref()
                .map(|run| SafeTensors::deserialize(run).unwrap());
            for (name, expected) in ring.iter() {
                let numbers = |view: &TensorView| {
                    let words = view
                        .data()
                        .chunks_exact(4)
                        .map(|word| word.try_into().unwrap());
                    words.map(f32::from_le_bytes).collect::<Vec<_>>()
                };
                let found = numbers(&mpi.tensor(name).unwrap());
                for (expected, found) in numbers(&expected).into_iter().zip(found) {
                    let off = (expected - found).abs();
                    assert!(
                        off <= 1e-5 * expected.abs().max(1.0),
                        "{shape}: {name}: {off}"
                    );
                }
            }
        }
        // On in the ring, in one process.
        let line = "train --resume --out mpi-2 --epochs 3 --max-steps 6";
        here.refuse(line, "use --all-reduce ring");
        here.succeed(&format!("{line} --all-reduce ring"));
    }

    /// Its first and last layers share their words, in different processes.
    #[test]
    fn a_language_model_with_tied_words_is_that_of_one_process() {
        let here = Here::new();
        let line = |out: &str| {
            format!(
                "train --model transformer-lm --layers 2 --width 32 --heads 2 --balance even --epochs 1 --max-steps 5 --save-every 2 --keep-last 9 --ema 0.9 --out {out}"
            )
        };
        here.run(&line("one"));
        succeeds(started(&here, 2, &line("two")));
        for checkpoint in ["epoch-0000-batch-0000002", "epoch-0000-batch-0000005"] {
            for name in ["model", "averaged", "optimizer-00001-of-00002"] {
                let file = |run: &str| {
                    here.bytes(&format!(
                        "{run}/checkpoints/{checkpoint}/{name}.safetensors"
                    ))
                };
                assert!(file("one") == file("two"), "{checkpoint}: {name}");
            }
        }
    }

    /// Each layer is measured where it runs, and the first process decides.
    #[test]
    fn a_cut_is_found_for_all_processes() {
        let here = Here::new();
        let line = "train --layers 3 --filters 4 --epochs 1 --max-steps 2 --out run";
        let text = succeeds(started(&here, 2, line));
        check_contains(
            &text,
            &[
                "a micro-batch on 0/cpu",
                "worker 1 needs about",
                "stage 1 on 1/cpu",
            ],
        );
    }

    /// Each process measures its devices, and the plan is one for both.
    #[test]
    fn a_plan_is_made_for_the_devices_of_all_processes() {
        let here = Here::new();
        let line = "plan --measure --layers 3 --filters 4 --batch-size 48 --devices cpu,cpu \
                    --profile costs.toml --write-machine machine.toml --out plan.toml";
        let text = succeeds(started(&here, 2, line));
        check_contains(&text, &["on 0/cpu", "on 1/cpu", "wrote machine.toml"]);
        let machine = here.read("machine.toml");
        check_contains(&machine, &["0/cpu", "1/cpu", "[[level]]", "bandwidth"]);
        // One process may be faster than two.
        let plan = here.read("plan.toml");
        let has = |rank: usize| plan.contains(&format!("\"{rank}/cpu\""));
        let used: Vec<_> = (0..2).filter(|rank| has(*rank)).collect();
        let line =
            "train --layers 3 --filters 4 --plan plan.toml --epochs 1 --max-steps 2 --out run";
        let text = match used.len() {
            1 => {
                let run = here.run(line);
                run.out + &run.err
            }
            count => succeeds(started(&here, count, line)),
        };
        check_contains(
            &text,
            &["stage 0 on ", "model, metrics and timeline in run"],
        );
    }

    /// Devices of all processes, with the links between them.
    #[test]
    fn devices_of_all_processes_are_measured() {
        let here = Here::new();
        let line = "devices --devices cpu,cpu:threads=2 --out machine.toml";
        let text = succeeds(started(&here, 2, line));
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        check_contains(&text, &["process 0  process 1", "GB/s"]);
        for device in ["0/cpu", "1/cpu:threads=2"] {
            let is_row = |line: &str| line.split_whitespace().take(2).eq([host.trim(), device]);
            assert!(text.lines().any(is_row), "{text}");
        }
        let machine = Machine::from_toml(&here.read("machine.toml")).unwrap();
        let names: Vec<_> = machine.devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["0/cpu", "1/cpu:threads=2"]);
        // They share the memory of one host, and one level of links joins them.
        assert!(machine.devices[0].memory.is_some());
        assert_eq!(machine.devices[0].memory, machine.devices[1].memory);
        assert_eq!(machine.levels.len(), 1);
        let level = machine.levels[0];
        assert!(level.workers == 2 && (1e6..1e12).contains(&level.bandwidth));
        let line = small("--machine machine.toml --out run");
        let text = succeeds(started(&here, 2, &line));
        check_contains(&text, &["stage 0 on 0/cpu", "stage 1 on 1/cpu:threads=2"]);
        // Without names, each lists its own.
        let text = succeeds(mpirun(&here, 3, "devices --list"));
        check_contains(&text, &["0/cpu", "1/cpu", "2/cpu"]);
    }

    /// Weights of one file, for a model whose head is new.
    #[test]
    fn pretrained_weights_reach_all_processes() {
        let here = Here::new();
        here.run(&small("--out base --max-steps 4"));
        let line = |more: &str| small(&format!("--from base --new-head true --max-steps 4 {more}"));
        here.run(&line("--out one"));
        succeeds(started(&here, 2, &line("--out two")));
        assert!(results(&here.join("one")) == results(&here.join("two")));
    }

    /// All processes come to the same report, which the first one prints.
    #[test]
    fn a_verification_is_one_of_all_processes() {
        let here = Here::new();
        let small = "verify --micro-batches 1,2 --samples 3";
        let two = format!("{small} --stages 3 --filters 4 --drop-path 0.3");
        let four = format!("{small} --stages 4 --model transformer-lm --layers 2");
        let command = [started(&here, 2, &two), mpirun(&here, 4, &four)];
        for text in command.map(succeeds) {
            for check in ["same bits", "whole mini-batch", "evaluation", "failed step"] {
                let holds = |line: &&str| line.starts_with(check) && line.ends_with("holds");
                assert_eq!(text.lines().filter(holds).count(), 1, "{text}");
            }
            assert_eq!(text.matches("all holds\n").count(), 1, "{text}");
        }
        assert!(here.is_empty());
    }

    /// A random process is killed at a random moment. The job ends; another number of processes goes on.
    #[test]
    fn kills_change_no_bit() {
        let kills = count(KILLS, 4);
        kill("", [2, 3, 1, 4], kills);
        kill("--replicas 2", [2, 4, 1, 2], kills.div_ceil(2));
    }

    fn kill(more: &str, sizes: [usize; 4], kills: usize) {
        let here = Here::new();
        here.run(&small(&format!("{more} --out whole")));
        let (mut done, mut number) = (0, 0);
        while done < kills {
            let out = format!("broken-{number}");
            let size = sizes[done % 4];
            let stages = if more.is_empty() { size.max(2) } else { 2 };
            let folder = here.path().join(&out);
            // A rank that is killed before it has joined is waited for.
            let line = format!(
                "{more} --resume --stall-timeout 60 --stages {stages} --out {}",
                folder.display()
            );
            let wait = Duration::from_millis(random(2000));
            let began = Instant::now();
            let output = with_fault(
                mpirun(&here, size, &small(&line)),
                (&folder, size),
                || began.elapsed() > wait,
                |ranks, _| signal("-KILL", ranks[random(size as u64) as usize]),
            );
            let text = said(&output);
            assert!(
                !text.contains("panicked") && !text.contains("damaged"),
                "{text}"
            );
            if output.status.success() {
                assert!(results(&folder) == results(&here.join("whole")));
                number += 1;
            } else {
                done += 1;
            }
        }
        let out = format!("broken-{number}");
        let last = small(&format!("{more} --resume --stages 2 --out {out}"));
        succeeds(started(&here, 2, &last));
        assert!(results(&here.join(&out)) == results(&here.join("whole")));
    }

    /// Ctrl-C ends the step in all processes, and a checkpoint is made once.
    #[test]
    fn a_signal_ends_all_processes_with_a_checkpoint() {
        let here = Here::new();
        let folder = here.path().join("run");
        let checkpoints = here.path().join("run.partial/checkpoints");
        let line = small(&format!("--epochs 1000 --out {}", folder.display()));
        let has_begun = || checkpoints.exists();
        let output = with_fault(
            started(&here, 2, &line),
            (&folder, 2),
            has_begun,
            |_, job| {
                signal("-INT", job);
            },
        );
        assert_eq!(output.status.code(), Some(130), "{}", said(&output));
        check_contains(
            &said(&output),
            &[
                "stopping after this step",
                "to go on: stovepipe train --resume",
            ],
        );
        assert_eq!(said(&output).matches("stopping after this step").count(), 1);
        assert!(folder.join("model.safetensors").exists());
    }

    /// A process that is stopped is named, and the job ends.
    #[test]
    fn faults_do_not_hang() {
        let here = Here::new();
        for fault in 0..count(FAULTS, 4) {
            let folder = here.path().join(format!("run-{fault}"));
            let line = format!("--epochs 1000 --stall-timeout 3 --out {}", folder.display());
            let wait = Duration::from_millis(random(3000));
            let began = Instant::now();
            let (size, victim) = ([2, 4][fault % 2], fault / 2);
            // In turn stages, and replicas of the whole model.
            let shape = match fault % 4 {
                2 => format!("--stages 1 --replicas {size}"),
                3 => format!("--stages 1 --replicas {size} --all-reduce mpi"),
                _ => format!("--stages {size}"),
            };
            let line = small(&format!("{line} {shape}"));
            let is_kill = fault % 5 == 4;
            let output = with_fault(
                mpirun(&here, size, &line),
                (&folder, size),
                || began.elapsed() > wait,
                |ranks, _| {
                    signal(
                        if is_kill { "-KILL" } else { "-STOP" },
                        ranks[victim % size],
                    )
                },
            );
            let text = said(&output);
            assert!(!output.status.success(), "{text}");
            assert!(!text.contains("panicked"), "{text}");
            // Before it has joined its job, nobody knows its rank.
            if !is_kill && text.contains("epoch 1") {
                let says = ["did not answer within 3s", "has exchanged no data for 3s"];
                assert!(says.iter().any(|says| text.contains(says)), "{text}");
            }
        }
    }

    /// As under `srun` without `--mpi=pmix`: each would train by itself.
    #[test]
    fn processes_that_mpi_does_not_connect_are_an_error() {
        let here = Here::new();
        for (rank, says) in [
            (
                "0",
                "error: srun started 2 processes, but each is alone in MPI",
            ),
            ("1", ""),
        ] {
            let mut command = as_root(here.typed("train"));
            command.envs([("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", rank)]);
            let said = crate::running::check_refused(command, says);
            assert_eq!(said.lines().count(), usize::from(rank == "0"), "{said}");
        }
        assert!(here.is_empty());
    }

    #[test]
    fn wrong_input_is_one_line_that_says_what_to_do() {
        let here = Here::new();
        fs::write(here.join("file"), "").unwrap();
        for (size, line, says) in [
            (2, "train --processes 2", "leave --processes out"),
            (2, "plan", "without --measure, `plan` runs in one process"),
            (
                2,
                "simulate --schedule gpipe",
                "`simulate` runs in one process",
            ),
            (
                3,
                "verify --stages 2",
                "3 processes: each needs at least one: set --stages 3",
            ),
            (2, "verify --data cifar10 --data-dir nowhere", "nowhere"),
            (2, "train --dry-run", "--dry-run: start it in one process"),
            (
                3,
                "train --stages 2",
                "2 stages for 3 processes: each needs at least one: set --stages 3",
            ),
            (
                2,
                "train --devices 0/cpu,2/cpu",
                "device 2/cpu: the job has the processes 0 to 1",
            ),
            (2, "train --devices 0/cpu,0/cpu", "process 1 has no device"),
            (
                2,
                "train --layers 3 --filters 4 --stages 1 --replicas 4 --balance even --all-reduce mpi",
                "stage 0's replicas: rank 0 has several places",
            ),
            (2, "train --devices 0/cpu,1/tpu", "unknown device"),
            (2, "devices --devices 0/cpu,1/tpu", "unknown device"),
            (2, "devices --out nowhere/machine.toml", "nowhere"),
            (
                2,
                "train --layers 3 --stages 40",
                "stages are more than the model's",
            ),
            (2, "train --out file", "file"),
            (2, "train --data imagenet --data-dir nowhere", "nowhere"),
            (2, "eval nowhere", "nowhere"),
            (
                2,
                "train --epoch 2",
                "a similar argument exists: '--epochs'",
            ),
            (
                2,
                "eval nowhere --prompt x",
                "start the program in one process",
            ),
        ] {
            let output = mpirun(&here, size, line).output().unwrap();
            let text = said(&output);
            assert!(!output.status.success(), "{line}: {text}");
            check_contains(&text, &[says]);
            let errors = text.lines().filter(|line| line.starts_with("error: "));
            let errors: Vec<_> = errors.collect();
            let own = 1 + usize::from(line.contains("--processes"));
            assert!(errors.len() <= own && !errors.is_empty(), "{line}: {text}");
            if line.starts_with("verify") {
                check_lacks(&text, &["MPI_ABORT"]);
            }
        }
        let left = fs::read_dir(here.path()).unwrap().count();
        assert_eq!(left, 1, "only the file");
    }
}
