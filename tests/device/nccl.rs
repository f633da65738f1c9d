//! The real library of NCCL, where its folder is named: no GPU is needed to load it.

use std::path::Path;
use std::process::Command;

use phalanx::device::nccl::{Abilities, IN_PROGRESS, Library, SUCCESS, name};

/// The folder of the Python package `nvidia-nccl-cu13`, which has `lib` and `include`.
const FOLDER: &str = "PHALANX_TEST_NCCL";

/// What the configuration has that Phalanx fills in, in order.
const FIELDS: [&str; 20] = [
    "size",
    "magic",
    "version",
    "blocking",
    "cgaClusterSize",
    "minCTAs",
    "maxCTAs",
    "netName",
    "splitShare",
    "trafficClass",
    "commName",
    "collnetEnable",
    "CTAPolicy",
    "shrinkShare",
    "nvlsCTAs",
    "nChannelsPerNetPeer",
    "nvlinkCentricSched",
    "graphUsageMode",
    "numRmaCtx",
    "maxP2pPeers",
];

#[test]
fn the_real_library_is_what_it_is_taken_for() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return println!("skipped: {FOLDER} names no folder of nvidia-nccl");
    };
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["--exact", "nccl::inside", "--nocapture"])
        .env("PHALANX_LIBRARIES", Path::new(&folder).join("lib"))
        .env(crate::harness::SCENARIO, "nccl")
        .output()
        .expect("this program again");
    let text = crate::harness::text(&output);
    assert!(output.status.success() && text.contains("NCCL 2."), "{text}");
}

/// In a process of its own, since the folder is told by the environment.
#[test]
fn inside() {
    if std::env::var(crate::harness::SCENARIO).as_deref() != Ok("nccl") {
        return;
    }
    let folder = std::env::var(FOLDER).expect("set by the test that starts this");
    let header = std::fs::read_to_string(Path::new(&folder).join("include/nccl.h")).expect("the header");
    let library = Library::load().expect("NCCL");
    println!("NCCL {} at {}", library.version(), library.library());
    let define = |what: &str| {
        let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define {what} ")));
        line.and_then(|number| number.trim().parse::<u32>().ok()).expect("a number in the header")
    };
    let version = library.version();
    assert_eq!((version.major, version.minor), (define("NCCL_MAJOR"), define("NCCL_MINOR")));
    assert_eq!(library.abilities(), Abilities { shrinks: true, grows: true, revokes: true });
    // The configuration only grows at its end.
    let start = header.find("typedef struct ncclConfig_v").expect("the configuration");
    let body = header[start..].split_once('{').and_then(|(_, rest)| rest.split_once('}')).expect("its fields").0;
    let fields: Vec<_> = body.lines().filter(|line| line.trim_end().ends_with(';')).collect();
    let fields: Vec<_> =
        fields.iter().filter_map(|line| line.trim().trim_end_matches(';').rsplit([' ', '*']).next()).collect();
    assert_eq!(fields[..FIELDS.len()], FIELDS);
    // Codes have the names that the header gives them, and the library knows each.
    for code in SUCCESS + 1..=8 {
        let line = header.lines().find(|line| line.contains(&format!("{} ", name(code))) && line.contains('='));
        let number = line.and_then(|line| line.split('=').nth(1)).and_then(|rest| rest.trim().split([',', ' ']).next());
        assert_eq!(number.and_then(|number| number.parse().ok()), Some(code), "{}", name(code));
        assert!(!library.words_of(code).is_empty());
    }
    assert_eq!(name(IN_PROGRESS), "ncclInProgress");
    // Without a device NCCL may refuse even this; then in words.
    match library.unique_id() {
        Ok(id) => assert!(id.0.iter().any(|byte| *byte != 0)),
        Err(error) => assert!(error.to_string().contains("ncclGetUniqueId failed with nccl"), "{error}"),
    }
}
