//! Libraries that a kind of device needs at run time, found by looking for their files.

use std::{env, fs, path::PathBuf};

/// A library, by the start of its file's name.
struct Library {
    kind: &'static str,
    file: &'static str,
    what: &'static str,
}

const LIBRARIES: [Library; 4] = [
    Library {
        kind: "cuda",
        file: "libcuda.so",
        what: "NVIDIA's driver",
    },
    Library {
        kind: "cuda",
        file: "libdevice.10.bc",
        what: "NVIDIA's functions for kernels, of the CUDA toolkit",
    },
    Library {
        kind: "cuda",
        file: "libnccl.so",
        what: "NCCL, for copies between GPUs; without it they go through the host",
    },
    Library {
        kind: "wgpu",
        file: "libvulkan.so",
        what: "the loader of Vulkan drivers",
    },
];

/// Where loaders look, beside `LD_LIBRARY_PATH`.
const FOLDERS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/usr/lib/wsl/lib",
];

/// Where Burn looks for CUDA's toolkit, unless `CUDA_PATH` says where it is.
const TOOLKITS: [&str; 4] = ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"];

/// For each library of a device's kind: its name, and what was found. Of other systems than Linux, nothing.
pub fn of(device: &str) -> Vec<(String, String)> {
    if !cfg!(target_os = "linux") {
        return Vec::new();
    }
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(FOLDERS.iter().map(PathBuf::from));
    let toolkits = match env::var_os("CUDA_PATH") {
        Some(path) => vec![PathBuf::from(path)],
        None => TOOLKITS.map(PathBuf::from).to_vec(),
    };
    let toolkits = toolkits.into_iter().map(|path| path.join("nvvm/libdevice"));
    let folders = folders.chain(toolkits);
    let mut found = found_in(device, &folders.collect::<Vec<_>>());
    // "NVRM version: … 580.82.07 …", and who built it.
    let driver = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    let version = driver
        .as_deref()
        .and_then(|text| text.split_whitespace().find(is_version));
    found.extend(version.map(|version| ("driver".to_owned(), version.to_owned())));
    found
}

fn found_in(device: &str, folders: &[PathBuf]) -> Vec<(String, String)> {
    let kind = device.split(':').next().unwrap_or_default();
    let own = LIBRARIES.iter().filter(|library| library.kind == kind);
    own.map(|library| {
        let is_it = |name: &String| name.starts_with(library.file);
        let files = folders
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok());
        let names = files.flatten().flatten();
        let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
        let longest = names.filter(is_it).max_by_key(String::len); // it has the version
        let found = longest.unwrap_or_else(|| "not found".to_owned());
        (
            library.file.to_owned(),
            format!("{found} ({})", library.what),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_with_the_version_is_shown_and_what_is_missing_is_said() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "libcuda.so",
            "libcuda.so.1",
            "libcuda.so.580.82",
            "libother.so",
        ] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let folders = [PathBuf::from("/nowhere"), folder.path().to_owned()];
        let found = found_in("cuda:1", &folders);
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["libcuda.so", "libdevice.10.bc", "libnccl.so"]);
        assert!(found[0].1.starts_with("libcuda.so.580.82 ("), "{found:?}");
        assert!(found[1].1.starts_with("not found ("), "{found:?}");
        assert!(found_in("cpu", &folders).is_empty());
    }
}
