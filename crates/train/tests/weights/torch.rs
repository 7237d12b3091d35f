//! Files as PyTorch writes them, and as it never would.

use std::{fs::File, io::Write, path::Path};

use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A tensor: its name, its shape, and as many numbers as there are.
pub type Named<'a> = (&'a str, &'a [usize], Vec<f32>);

/// Writes a dictionary of tensors as `torch.save` does since 1.6.
pub fn save(path: &Path, tensors: &[Named<'_>]) {
    let storages = tensors.iter().map(|(_, _, numbers)| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        bytes.collect::<Vec<u8>>()
    });
    let mut entries = vec![("data.pkl".to_owned(), state_dict(tensors))];
    entries.push(("byteorder".to_owned(), b"little".to_vec()));
    entries.extend((storages.enumerate()).map(|(key, bytes)| (format!("data/{key}"), bytes)));
    entries.push(("version".to_owned(), b"3\n".to_vec()));
    archive(path, &entries, CompressionMethod::Stored);
}

pub fn archive(path: &Path, entries: &[(String, Vec<u8>)], compression: CompressionMethod) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_method(compression);
    for (name, bytes) in entries {
        let started = archive.start_file(format!("archive/{name}"), options);
        started
            .and_then(|()| Ok(archive.write_all(bytes)?))
            .unwrap();
    }
    archive.finish().unwrap();
}

/// A pickle of a dictionary of tensors, the numbers of which are in storages of their own.
fn state_dict(tensors: &[Named<'_>]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}(".to_vec();
    for (key, (name, shape, numbers)) in tensors.iter().enumerate() {
        text(&mut pickle, name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nFloatStorage\n");
        text(&mut pickle, &key.to_string());
        text(&mut pickle, "cpu");
        number(&mut pickle, numbers.len());
        pickle.extend(b"tQK\0(");
        shape.iter().for_each(|&size| number(&mut pickle, size));
        pickle.extend(b"t(");
        for axis in 0..shape.len() {
            number(&mut pickle, shape[axis + 1..].iter().product());
        }
        pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    pickle
}

fn text(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend((text.len() as u32).to_le_bytes());
    pickle.extend(text.as_bytes());
}

fn number(pickle: &mut Vec<u8>, number: usize) {
    pickle.push(b'J');
    pickle.extend((number as u32).to_le_bytes());
}
