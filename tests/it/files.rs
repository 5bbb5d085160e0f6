//! The files that tests read.

use std::fs;
use std::path::{Path, PathBuf};

/// All files below a folder with one of these endings. None if there is no such folder: the published package lacks some.
pub fn below(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one)) {
                files.push(path);
            }
        }
    }
    files
}
