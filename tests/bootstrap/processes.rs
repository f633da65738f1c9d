//! Real processes: this test program starts itself, by hand and under real launchers.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx::Config;
use phalanx::bootstrap::{Introduction, join};
use phalanx::types::Deadline;

/// Not a test: what the processes run. Prints one line.
#[test]
#[ignore = "run by the other tests in processes of its own"]
fn member() {
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
    let config = Config::from_env().unwrap();
    let introduction = Introduction { addresses: vec![config.launch.rank as u8], host: b"here".to_vec() };
    let roster = join(&config, introduction, deadline).unwrap();
    assert!(roster.members.iter().all(|member| member.addresses == [member.rank as u8]));
    let (local_rank, local_size) = roster.view.local(roster.rank);
    println!("MEMBER {} {} {local_rank} {local_size} {}", roster.rank, roster.size, &roster.key.job().0[0]);
}

/// This program, told to run [`member`].
fn member_command(launcher: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut words: Vec<std::ffi::OsString> = launcher.iter().map(Into::into).collect();
    words.push(program.into());
    words.extend(["processes::member", "--exact", "--ignored", "--nocapture"].map(Into::into));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    // What a launcher of the tests themselves set is not meant for these.
    for name in phalanx::bootstrap::foreign_variables() {
        command.env_remove(name);
    }
    for variable in phalanx::bootstrap::variables() {
        command.env_remove(variable.name);
    }
    command
}

fn lines(output: &std::process::Output) -> Vec<Vec<usize>> {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    // Several processes write to one pipe, and the test runner's own words come in between.
    let found = text.match_indices("MEMBER ").map(|(at, _)| {
        let line = text[at..].lines().next().unwrap_or_default();
        line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect()
    });
    let mut found: Vec<Vec<usize>> = found.collect();
    found.sort();
    found
}

fn assert_world(lines: &[Vec<usize>], size: usize) {
    assert_eq!(lines.len(), size, "{lines:?}");
    for (rank, line) in lines.iter().enumerate() {
        assert_eq!(line[..4], [rank, size, rank, size]);
        assert_eq!(line[4], lines[0][4], "all have the same key");
    }
}

#[test]
fn sixty_four_processes_meet() {
    let began = Instant::now();
    let children: Vec<Child> = (0..64)
        .map(|rank| {
            let mut command = member_command(&[]);
            command.env("PHALANX_RANK", rank.to_string()).env("PHALANX_SIZE", "64");
            command.env("PHALANX_RENDEZVOUS", "local").env("PHALANX_JOB", format!("test {}", std::process::id()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut found: Vec<_> = children.into_iter().flat_map(|child| lines(&child.wait_with_output().unwrap())).collect();
    found.sort();
    assert_world(&found, 64);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// Runs the members under a launcher, or says that it is not there; where tests are checked for a merge it must be.
fn under(launcher: &[&str], size: usize, rendezvous: Option<&str>) {
    let mut command = member_command(launcher);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    if let Some(rendezvous) = rendezvous {
        command.env("PHALANX_RENDEZVOUS", rendezvous);
    }
    match command.stdin(Stdio::null()).output() {
        Ok(output) => assert_world(&lines(&output), size),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
            eprintln!("not tested: {} is not installed", launcher[0]);
        }
        Err(error) => panic!("{}: {error}", launcher[0]),
    }
}

const MPIRUN: [&str; 4] = ["mpirun.openmpi", "--oversubscribe", "-np", "4"];
const HYDRA: [&str; 3] = ["mpiexec.hydra", "-np", "4"];

#[test]
fn under_open_mpi_nothing_has_to_be_said() {
    under(&MPIRUN, 4, None);
}

#[test]
fn under_open_mpi_through_pmix() {
    under(&MPIRUN, 4, Some("pmix"));
}

#[test]
fn under_hydra_nothing_has_to_be_said() {
    under(&HYDRA, 4, None);
}

#[test]
fn under_hydra_through_pmi() {
    under(&HYDRA, 4, Some("pmi"));
}

#[test]
fn under_hydra_behind_a_shell() {
    let script = ["mpiexec.hydra", "-np", "3", "sh", "-c", "\"$0\" \"$@\"; exit $?"];
    under(&script, 3, None);
}

#[test]
fn two_jobs_at_once_do_not_meet_each_other() {
    std::thread::scope(|scope| {
        for launcher in [&HYDRA[..], &HYDRA[..], &MPIRUN[..], &MPIRUN[..]] {
            scope.spawn(move || under(launcher, 4, None));
        }
    });
}
