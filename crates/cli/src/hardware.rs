//! GPUs that this program was not built for, found by looking for a few files.

use std::path::Path;

use stovepipe::schedule::count;

/// A driver: the files that show that it is installed, and whether the program was built for it.
struct Driver {
    feature: &'static str,
    name: &'static str,
    files: &'static [&'static str],
    is_built: bool,
}

const DRIVERS: [Driver; 2] = [
    Driver {
        feature: "cuda",
        name: "an NVIDIA driver",
        files: &[
            "proc/driver/nvidia/version",
            "dev/nvidiactl",
            "usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "usr/lib64/libcuda.so.1",
            "usr/lib/wsl/lib/libcuda.so.1",
        ],
        is_built: cfg!(feature = "cuda"),
    },
    Driver {
        feature: "wgpu",
        name: "a graphics driver",
        files: &[
            "dev/dri/renderD128",
            "dev/dri/renderD129",
            "System/Library/Frameworks/Metal.framework",
        ],
        is_built: cfg!(feature = "wgpu"),
    },
];

/// What this machine has and this program was not built for.
#[derive(Debug, PartialEq, Eq)]
pub struct Unused {
    pub feature: &'static str,
    /// A clause that says what was found.
    pub found: String,
}

pub fn unused() -> Vec<Unused> {
    unused_under(Path::new("/"), |driver| driver.is_built)
}

fn unused_under(root: &Path, is_built: impl Fn(&Driver) -> bool) -> Vec<Unused> {
    let found = |driver: &Driver| {
        let mut files = driver.files.iter().map(|file| root.join(file));
        let file = files.find(|file| file.exists())?;
        Some(Unused {
            feature: driver.feature,
            found: format!("this machine has {} ({})", driver.name, file.display()),
        })
    };
    let drivers = DRIVERS.iter().filter(|driver| !is_built(driver));
    drivers.filter_map(found).collect()
}

/// A line for each, to print before a run.
pub fn hints() -> String {
    let line = |unused: Unused| {
        let Unused { feature, found } = unused;
        format!("{found}, but this program was built without --features {feature}\n")
    };
    unused().into_iter().map(line).collect()
}

/// A line if there are fewer cores than threads.
pub fn shared_cores(threads: usize, cores: usize) -> String {
    if threads <= cores {
        return String::new();
    }
    let cores = count(cores, "core");
    format!("warning: {threads} CPU threads share {cores}, so steps take longer than predicted\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn more_threads_than_cores_are_said() {
        for (threads, cores, expected) in [
            (1, 1, ""),
            (4, 4, ""),
            (2, 1, "warning: 2 CPU threads share 1 core, "),
            (5, 4, "warning: 5 CPU threads share 4 cores, "),
        ] {
            let line = shared_cores(threads, cores);
            assert!(line.starts_with(expected), "{line}");
            assert_eq!(line.is_empty(), expected.is_empty(), "{line}");
        }
    }

    #[test]
    fn drivers_are_found_by_their_files_and_name_the_feature() {
        for (files, built, expected) in [
            ("", "", ""),
            ("proc/driver/nvidia/version", "", "cuda"),
            ("usr/lib/wsl/lib/libcuda.so.1", "", "cuda"),
            ("dev/dri/renderD128", "", "wgpu"),
            ("dev/dri/card0", "", ""),
            ("dev/nvidiactl dev/dri/renderD128", "", "cuda wgpu"),
            ("dev/nvidiactl dev/dri/renderD128", "cuda", "wgpu"),
            ("dev/nvidiactl", "cuda", ""),
        ] {
            let root = tempfile::tempdir().unwrap();
            for file in files.split_whitespace() {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            let unused = unused_under(root.path(), |driver| built == driver.feature);
            let features: Vec<_> = unused.iter().map(|unused| unused.feature).collect();
            assert_eq!(features.join(" "), expected, "{files}");
            for unused in unused {
                let file = (files.split_whitespace()).any(|file| unused.found.contains(file));
                assert!(file, "{unused:?}");
            }
        }
    }
}
