//! Variables in, a place in the world out: `environment.txt` is a table that can be read without Rust.
//!
//! A case is a line `## what`, the variables one a line, a line `=>`, and what comes out.

use phalanx::Config;
use phalanx::bootstrap::{Rendezvous, Variables};
use proptest::prelude::*;

const TABLE: &str = include_str!("environment.txt");

struct Case {
    what: &'static str,
    variables: Variables,
    expected: String,
}

fn cases() -> Vec<Case> {
    let blocks = TABLE.split("\n## ").skip(1);
    blocks
        .map(|block| {
            let (what, rest) = block.split_once('\n').unwrap();
            let (variables, expected) = rest.split_once("=>\n").unwrap_or_else(|| panic!("{what}: no =>"));
            let variables = variables.lines().filter_map(|line| line.split_once('=')).collect();
            Case { what, variables, expected: expected.trim().to_string() }
        })
        .collect()
}

fn outcome(variables: &Variables) -> String {
    let config = match Config::from_variables(variables) {
        Ok(config) => config,
        Err(error) => return format!("error: {error}"),
    };
    let launch = config.launch;
    let known = |value: Option<usize>| value.map_or("?".to_string(), |value| value.to_string());
    let mut lines = vec![
        format!(
            "rank {} of {}, local {} of {}, by {}",
            launch.rank,
            launch.size,
            known(launch.local_rank),
            known(launch.local_size),
            launch.launcher
        ),
        format!("meets: {:?}", launch.rendezvous),
    ];
    lines.extend(launch.job.map(|job| format!("job: {job}")));
    lines.extend(launch.notes.into_iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

#[test]
fn the_table_holds() {
    let cases = cases();
    assert!(cases.len() > 40, "only {} cases were read", cases.len());
    let mut wrong = String::new();
    for Case { what, variables, expected } in cases {
        let found = outcome(&variables);
        if found != expected {
            wrong += &format!("## {what}\nexpected:\n{expected}\nfound:\n{found}\n\n");
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn a_key_is_never_in_what_is_printed() {
    let secret = "c0ffee".repeat(11);
    let variables = |value: &str| -> Variables {
        [("PHALANX_KEY", value), ("PHALANX_RANK", "0"), ("PHALANX_SIZE", "2")].into_iter().collect()
    };
    let wrong = Config::from_variables(&variables(&secret)).unwrap_err().to_string();
    assert!(wrong.contains("PHALANX_KEY=(hidden)") && !wrong.contains("c0ffee"), "{wrong}");
    let right = &secret[..64];
    let config = Config::from_variables(&variables(right)).unwrap();
    assert!(!format!("{config:?}").contains("c0ffee") && config.settings.key.is_given());
}

#[test]
fn settings_are_read() {
    let set = |name: &str, value: &str| Config::from_variables(&[(name, value)].into_iter().collect());
    let good = [
        ("PHALANX_TIMEOUT", "30", "timeout: 30s"),
        ("PHALANX_TIMEOUT", "0.25", "timeout: 250ms"),
        ("PHALANX_TIMEOUT", "1500ms", "timeout: 1.5s"),
        ("PHALANX_TIMEOUT", "2m", "timeout: 120s"),
        ("PHALANX_START_TIMEOUT", "1h", "start_timeout: 3600s"),
        ("PHALANX_TRANSPORT", "tcp", "transport: Some(Tcp)"),
        ("PHALANX_ALGORITHM", "two-shot", "algorithm: Some(TwoShot)"),
        ("PHALANX_SINGLE_COPY", "0", "single_copy: false"),
        ("PHALANX_DETERMINISTIC", "1", "deterministic: true"),
        ("PHALANX_DETERMINISTIC", "off", "deterministic: false"),
        ("PHALANX_INTERFACE", "eth0", "interface: Some(\"eth0\")"),
        ("PHALANX_PORTS", "20000-20010", "ports: Some(20000..=20010)"),
        ("PHALANX_PORTS", "20000", "ports: Some(20000..=20000)"),
        ("PHALANX_SOCKETS", "4", "sockets: Some(4)"),
        ("PHALANX_KEY_FILE", "/k", "key: File(\"/k\")"),
        ("PHALANX_LOG", "debug", "log: Some(\"debug\")"),
    ];
    for (name, value, expected) in good {
        let settings = format!("{:?}", set(name, value).unwrap().settings);
        assert!(settings.contains(expected), "{name}={value}: {settings}");
    }
    let bad = [
        ("PHALANX_TIMEOUT", "1..5", "expected a number of seconds"),
        ("PHALANX_TIMEOUT", "0", "expected more than 0 seconds"),
        ("PHALANX_TIMEOUT", "-1", "expected more than 0 seconds"),
        ("PHALANX_TIMEOUT", "inf", "inf"),
        ("PHALANX_TIMEOUT", "5 years", "the unit \"years\" is not ms, s, m or h"),
        ("PHALANX_TRANSPORT", "carrier-pigeon", "expected one of"),
        ("PHALANX_TRANSPORT", "inproc", "expected shm, tcp, rdma or mpi"),
        ("PHALANX_ALGORITHM", "spiral", "expected one of ring"),
        ("PHALANX_SINGLE_COPY", "never", "expected 1 or 0"),
        ("PHALANX_DETERMINISTIC", "maybe", "expected 1 or 0"),
        ("PHALANX_PORTS", "9-1", "the smaller first"),
        ("PHALANX_PORTS", "0", "from 1 to 65535"),
        ("PHALANX_PORTS", "70000", "from 1 to 65535"),
        ("PHALANX_SOCKETS", "0", "expected a number from 1 to"),
        ("PHALANX_SOCKETS", "65", "expected a number from 1 to"),
        ("PHALANX_RDMA_PORT", "0", "PHALANX_RDMA_PORT"),
        ("PHALANX_RDMA_TRAFFIC_CLASS", "256", "PHALANX_RDMA_TRAFFIC_CLASS"),
        ("PHALANX_RDMA_MTU", "1000", "PHALANX_RDMA_MTU"),
        ("PHALANX_KEY", "12", "64 hexadecimal digits"),
    ];
    for (name, value, expected) in bad {
        let error = set(name, value).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{name}={value}: {error}");
    }
    let both = [("PHALANX_KEY", "00".repeat(32)), ("PHALANX_KEY_FILE", "/k".into())];
    let error = Config::from_variables(&both.into_iter().collect()).unwrap_err().to_string();
    assert!(error.contains("both PHALANX_KEY=(hidden) and PHALANX_KEY_FILE=/k are set"), "{error}");
}

fn any_variables() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let mut names = phalanx::bootstrap::foreign_variables();
    names.extend(phalanx::bootstrap::variables().iter().map(|variable| variable.name));
    names.extend(["SLURM_JOB_ID", "SLURM_NODEID", "SLURM_NTASKS"]);
    let values =
        ["", " ", "0", "1", "2", "4", "-1", "x", "18446744073709551615", "99999999999999999999", "4(x2)", "a:1"];
    let more =
        ["local", "pmi", "pmix", "file:///x", "unix:@x", "[::1]:5", "localhost", "launcher", "shm", "ring", "\u{fffd}"];
    let values: Vec<&str> = values.into_iter().chain(more).collect();
    prop::collection::vec((prop::sample::select(names), prop::sample::select(values)), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// Whatever is set: no panic, a place that can be, or an error that names a variable which is set.
    #[test]
    fn any_environment_is_a_place_or_an_error_that_names_a_variable(pairs in any_variables()) {
        let variables: Variables = pairs.iter().copied().collect();
        match Config::from_variables(&variables) {
            Ok(config) => {
                let launch = config.launch;
                prop_assert!(launch.rank < launch.size);
                prop_assert_eq!(launch.size == 1, launch.rendezvous == Rendezvous::Alone);
                if let (Some(local_rank), Some(local_size)) = (launch.local_rank, launch.local_size) {
                    prop_assert!(local_rank < local_size && local_size <= launch.size);
                }
            }
            Err(error) => {
                let text = error.to_string();
                prop_assert!(variables.names().any(|name| text.contains(name)), "{}", text);
            }
        }
    }
}
