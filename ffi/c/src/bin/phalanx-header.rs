//! Writes `phalanx.h` into a folder, or to the terminal.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        print!("{}", phalanx_c::HEADER);
        return ExitCode::SUCCESS;
    };
    let file = folder.join("phalanx.h");
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, phalanx_c::HEADER)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}
