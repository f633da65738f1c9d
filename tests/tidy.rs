//! The repository checks its own style: who may import whom, which calls are banned, how long a file may be.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of `src/`, lowest first. A room imports only rooms before it.
const ROOMS: [&str; 18] = [
    "types",
    "schedule",
    "reduce",
    "wire",
    "membership",
    "sim",
    "sys",
    "transport",
    "bootstrap",
    "device",
    "executor",
    "comm",
    "elastic",
    "observe",
    "launch",
    "testing",
    "python",
    "cli",
];

/// Rooms without I/O, clocks and threads.
const PURE: [&str; 6] = ["types", "schedule", "reduce", "wire", "membership", "sim"];

/// The most lines a source file may have: one idea fits.
const MAX_LINES: usize = 700;

fn files(root: &str, extension: &str) -> Vec<PathBuf> {
    fn visit(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if name != "target" && name != ".git" && name != ".venv" {
                    visit(&path, extension, found);
                }
            } else if path.extension().is_some_and(|other| other == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(root), extension, &mut found);
    found.sort();
    assert!(!found.is_empty(), "no .{extension} files under {root}");
    found
}

/// The room a file lives in.
fn room_of(path: &Path) -> Option<&'static str> {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).ok()?;
    let first = inside.components().next()?.as_os_str().to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    ROOMS.into_iter().find(|room| *room == name)
}

/// The lines of a file that are neither comments nor tests, with their numbers. A module of tests stands last.
fn code(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).expect("a readable source file");
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.ends_with("tests.rs")
        || name == "simulation.rs"
        || path.components().any(|part| ["conformance", "tests"].iter().any(|test| part.as_os_str() == *test))
    {
        return Vec::new();
    }
    let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
    let body = body.split("\n#[cfg(all(test, ").next().unwrap_or(body);
    let lines = body.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned()));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).collect()
}

#[test]
fn rooms_import_only_lower_rooms() {
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let Some(room) = room_of(&path) else { continue };
        let level = ROOMS.iter().position(|other| *other == room);
        for (number, line) in code(&path) {
            for (at, _) in line.match_indices("crate::") {
                let named = &line[at + "crate::".len()..];
                let higher = ROOMS.iter().enumerate().find(|(_, other)| {
                    named
                        .strip_prefix(**other)
                        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
                });
                if higher.is_some_and(|(other, _)| Some(other) > level) {
                    wrong.push(format!("{}:{number}: {room} imports a higher room: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_folder_of_the_library_is_a_known_room() {
    let known: BTreeSet<_> = ROOMS.into_iter().collect();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("src").flatten() {
        let name = entry.file_name().into_string().expect("a readable name");
        let name = name.strip_suffix(".rs").unwrap_or(&name);
        assert!(known.contains(name) || name == "lib" || name == "main", "src/{name} is not in the list of rooms");
    }
}

#[test]
fn pure_rooms_do_no_io_read_no_clock_and_start_no_threads() {
    let banned =
        ["std::net", "std::fs", "std::io::", "std::thread", "std::process", "std::env", "Instant::now", "SystemTime"];
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        if !room_of(&path).is_some_and(|room| PURE.contains(&room)) {
            continue;
        }
        for (number, line) in code(&path) {
            if let Some(call) = banned.iter().find(|call| line.contains(**call)) {
                wrong.push(format!("{}:{number}: {call} in a pure room", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn banned_calls_are_not_made() {
    let banned = [
        (".unwrap()", "return an error, or say in `expect` why it cannot be"),
        ("todo!(", "finish it"),
        ("unimplemented!(", "finish it"),
        ("thread::sleep", "wait for the event"),
        ("dbg!(", "use tracing"),
    ];
    let mut wrong = Vec::new();
    for path in files("src", "rs").into_iter().chain(files("ffi", "rs")) {
        for (number, line) in code(&path) {
            for (call, instead) in banned {
                if line.contains(call) {
                    wrong.push(format!("{}:{number}: {call}: {instead}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_one_idea_long() {
    let mut wrong = Vec::new();
    for path in files("src", "rs").into_iter().chain(files("ffi", "rs")) {
        let lines = fs::read_to_string(&path).expect("a readable source file").lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines, at most {MAX_LINES} wanted", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_room_opens_with_its_story() {
    for path in files("src", "rs") {
        let text = fs::read_to_string(&path).expect("a readable source file");
        assert!(text.starts_with("//!"), "{}: starts without saying what it is", path.display());
    }
}
