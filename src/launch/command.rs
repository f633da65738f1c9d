//! Whether a command can be run, looked at before anything is started.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::LaunchError;
use crate::types::Error;

/// Where programs are looked for when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that `program` names, found as the system will find it: as a path when it has a slash, else along `path`.
///
/// # Errors
///
/// Exit code 127 when there is no such file (or the interpreter that its first line names is missing), 126 when it
/// cannot be executed; the hint says what was probably meant.
pub fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, LaunchError> {
    let shown = program.to_string_lossy().into_owned();
    if program.is_empty() {
        return Err(refuse(127, "the command is empty", "write the program and its arguments after the options"));
    }
    let mut blocked = None;
    for candidate in candidates(program, path) {
        match std::fs::metadata(&candidate) {
            Ok(meta) if meta.is_dir() => {
                blocked.get_or_insert((candidate, "is a directory", "name a program in it"));
            }
            Ok(_) if rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK).is_ok() => {
                return check_interpreter(candidate);
            }
            Ok(meta) => {
                let hint = if meta.permissions().mode() & 0o111 == 0 { "chmod" } else { "rights" };
                blocked.get_or_insert((candidate, "is not executable", hint));
            }
            Err(_) => {}
        }
    }
    if let Some((file, what, hint)) = blocked {
        let name = file.display();
        let hint = match (hint, file.extension().and_then(OsStr::to_str)) {
            ("chmod", Some("py")) => {
                format!("start it as `python {name}`, or make it executable with `chmod +x {name}`")
            }
            ("chmod", Some("sh")) => format!("start it as `sh {name}`, or make it executable with `chmod +x {name}`"),
            ("chmod", _) => format!("make it executable with `chmod +x {name}`"),
            ("rights", _) => "this user may not execute it, or its file system is mounted noexec".into(),
            (hint, _) => hint.into(),
        };
        return Err(refuse(126, &format!("{name} {what}"), &hint));
    }
    let hint = if shown.contains(char::is_whitespace) {
        "the command and its arguments are words of their own: leave out the quotes around them".into()
    } else if program.as_bytes().contains(&b'/') {
        "look at the path; it is relative to the current directory unless it begins with a slash".into()
    } else if Path::new(program).is_file() {
        format!("a file of that name is in this directory: did you mean ./{shown}?")
    } else if shown == "python" && candidates("python3".as_ref(), path).any(|file| file.is_file()) {
        "there is a python3: did you mean that?".into()
    } else {
        "is it installed, and is its directory in PATH?".into()
    };
    Err(refuse(127, &format!("{shown}: no such command"), &hint))
}

fn refuse(code: u8, what: &str, hint: &str) -> LaunchError {
    LaunchError { code, error: Error::environment(what, hint) }
}

fn candidates(program: &OsStr, path: Option<&OsStr>) -> impl Iterator<Item = PathBuf> {
    let directories: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![PathBuf::new()]
    } else {
        std::env::split_paths(path.unwrap_or(OsStr::new(DEFAULT_PATH))).collect()
    };
    let program = program.to_owned();
    directories.into_iter().map(move |directory| directory.join(&program))
}

/// A script whose interpreter is missing fails with "no such file", which misleads: the script is there.
fn check_interpreter(file: PathBuf) -> Result<PathBuf, LaunchError> {
    let mut start = Vec::new();
    // Who may execute a file need not be able to read it.
    if let Ok(mut open) = std::fs::File::open(&file) {
        let _ = Read::by_ref(&mut open).take(256).read_to_end(&mut start);
    }
    let Some(interpreter) = interpreter(&start) else { return Ok(file) };
    if Path::new(&interpreter).exists() {
        return Ok(file);
    }
    let hint = if interpreter.as_bytes().ends_with(b"\r") {
        "the file has DOS line ends: convert it to Unix ones"
    } else {
        "install it, or correct the first line of the script"
    };
    let shown = interpreter.to_string_lossy();
    Err(refuse(127, &format!("{} wants the interpreter {shown:?}, which is missing", file.display()), hint))
}

/// The program that the first line of a script names.
fn interpreter(start: &[u8]) -> Option<OsString> {
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(|&byte| byte == b' ' || byte == b'\t').find(|word| !word.is_empty())?;
    Some(OsString::from_vec(word.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &Path, name: &str, text: &str, mode: u32) {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn error(program: &str, path: &Path) -> (u8, String) {
        let error = find(program.as_ref(), Some(path.as_os_str())).unwrap_err();
        (error.code, error.error.to_string())
    }

    #[test]
    fn programs_are_found_along_the_path() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "tool", "#!/bin/sh\n", 0o755);
        assert_eq!(find("tool".as_ref(), Some(dir.path().as_os_str())).unwrap(), dir.path().join("tool"));
        let whole = dir.path().join("tool");
        assert_eq!(find(whole.as_os_str(), None).unwrap(), whole);
        assert!(find("sh".as_ref(), None).is_ok());
    }

    #[test]
    fn what_cannot_be_run_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "train.py", "print()\n", 0o644);
        file(dir.path(), "lost", "#!/nowhere/python -u\n", 0o755);
        file(dir.path(), "dos", "#!/bin/sh\r\n", 0o755);
        let (code, text) = error("train.py", dir.path());
        assert_eq!(code, 126);
        assert!(text.contains("`python "), "{text}");
        let (code, text) = error("lost", dir.path());
        assert_eq!(code, 127);
        assert!(text.contains("/nowhere/python"), "{text}");
        assert!(error("dos", dir.path()).1.contains("DOS line ends"));
        assert_eq!(error(dir.path().to_str().unwrap(), dir.path()).0, 126);
        let (code, text) = error("python train.py", dir.path());
        assert_eq!(code, 127);
        assert!(text.contains("words of their own"), "{text}");
        assert!(error("no-such-tool", dir.path()).1.contains("PATH"));
        assert_eq!(error("", dir.path()).0, 127);
    }
}
