//! GPUs that this program was not built for, found by looking for a few files.

use std::path::Path;

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
    /// The feature that it needs.
    pub feature: &'static str,
    /// A clause that says what was found.
    pub found: String,
}

/// Looks at this machine.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn drivers_are_found_by_their_files_and_name_the_feature() {
        for (files, built, expected) in [
            (&[][..], &[][..], &[][..]),
            (&["proc/driver/nvidia/version"], &[], &["cuda"]),
            (&["usr/lib/wsl/lib/libcuda.so.1"], &[], &["cuda"]),
            (&["dev/dri/renderD128"], &[], &["wgpu"]),
            (&["dev/dri/card0"], &[], &[]),
            (
                &["dev/nvidiactl", "dev/dri/renderD128"],
                &[],
                &["cuda", "wgpu"],
            ),
            (
                &["dev/nvidiactl", "dev/dri/renderD128"],
                &["cuda"],
                &["wgpu"],
            ),
            (&["dev/nvidiactl"], &["cuda"], &[]),
        ] {
            let root = tempfile::tempdir().unwrap();
            for file in files {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            let unused = unused_under(root.path(), |driver| built.contains(&driver.feature));
            let features: Vec<_> = unused.iter().map(|unused| unused.feature).collect();
            assert_eq!(features, expected, "{files:?}");
            for unused in unused {
                let file = files.iter().any(|file| unused.found.contains(file));
                assert!(file, "{unused:?}");
            }
        }
    }
}
